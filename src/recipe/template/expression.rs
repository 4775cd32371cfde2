//! One `${{ … }}`: a bare path, or an expression that is computed.

use std::{sync::Arc, thread};

use leasehold_actors::ports::recipe::JsonText;

use super::{
    Names, Reference, TemplateError,
    evaluate::{Evaluation, Fault},
    quoted, scan,
    term::{self, Term, join},
};
use crate::recipe::{
    canonical::canonical_value,
    exact::{raw_element, raw_member},
    limits::EXPRESSION_STACK_BYTES,
};

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Expression {
    source: String,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// Copies recorded text.
    Path {
        reference: Reference,
        root: String,
        steps: Vec<Step>,
    },
    Term(Term),
}

/// One step of a bare path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(u64),
}

impl Expression {
    pub(super) fn compile(source: &str, names: &dyn Names) -> Result<Self, String> {
        scan::guard(source)?;
        let form = match bare_path(source) {
            Some(steps) => {
                let words: Vec<&str> = steps
                    .iter()
                    .map_while(|step| match step {
                        Step::Key(key) => Some(key.as_str()),
                        Step::Index(_) => None,
                    })
                    .collect();
                let (reference, used) =
                    names.resolve(&words).map_err(|reason| in_expression(source, &reason))?;
                let root = words[1..used].iter().fold(words[0].to_owned(), |path, word| join(&path, word));
                Form::Path { reference, root, steps: steps[used..].to_vec() }
            }
            None => Form::Term(
                on_large_stack(|| term::compile(source, names))
                    .map_err(|e| e.to_string())?
                    .map_err(|reason| in_expression(source, &reason))?,
            ),
        };
        Ok(Self { source: source.to_owned(), form })
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn computes(&self) -> bool {
        matches!(self.form, Form::Term(_))
    }

    /// Its value as JSON text: recorded text as it is, or canonical text of what was computed.
    pub(super) fn evaluate(&self, with: &mut Evaluation<'_>) -> Result<JsonText, TemplateError> {
        let value = match &self.form {
            Form::Path { reference, root, steps } => copy(*reference, root, steps, with),
            Form::Term(term) => with.compute(term).map(|value| canonical_value(&value).into()),
        };
        value.map_err(|fault| {
            let expression = quoted(&self.source);
            match fault {
                Fault::Unresolved(path) => TemplateError::Unresolved { path, expression },
                Fault::Failed(reason) => TemplateError::Failed { expression, reason },
                Fault::TooCostly => TemplateError::TooCostly { expression },
            }
        })
    }
}

fn copy(
    reference: Reference,
    root: &str,
    steps: &[Step],
    with: &mut Evaluation<'_>,
) -> Result<JsonText, Fault> {
    let text = with.text(reference, root)?;
    let mut at: &str = &text;
    let mut path = root.to_owned();
    for step in steps {
        let found = match step {
            Step::Key(key) => {
                path = join(&path, key);
                raw_member(at, key)
            }
            Step::Index(index) => {
                path = format!("{path}[{index}]");
                raw_element(at, *index)
            }
        };
        at = found.ok_or_else(|| Fault::Unresolved(path.clone()))?;
    }
    Ok(if at.len() == text.len() { Arc::clone(&text) } else { at.into() })
}

fn in_expression(source: &str, reason: &str) -> String {
    format!("`${{{{ {} }}}}`: {reason}", quoted(source))
}

/// The steps of a bare path: a name, then `.name`, `["key"]` or `[0]`. Anything else is an expression.
fn bare_path(source: &str) -> Option<Vec<Step>> {
    let name_end =
        |text: &str| text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let end = name_end(source);
    let first = &source[..end];
    if !term::is_name(first) || matches!(first, "true" | "false" | "null") {
        return None;
    }
    let mut steps = vec![Step::Key(first.to_owned())];
    let mut rest = &source[end..];
    while !rest.is_empty() {
        if let Some(behind) = rest.strip_prefix('.') {
            let end = name_end(behind);
            if !term::is_name(&behind[..end]) {
                return None;
            }
            steps.push(Step::Key(behind[..end].to_owned()));
            rest = &behind[end..];
        } else {
            let inside = rest.strip_prefix('[')?;
            let end = inside.find(']')?;
            let index = &inside[..end];
            let quote = index.chars().next()?;
            if matches!(quote, '"' | '\'') {
                // A key with brackets, quotes or escapes in it is left to the parser.
                let key = index.strip_prefix(quote)?.strip_suffix(quote)?;
                if key.contains(['\\', '"', '\'']) {
                    return None;
                }
                steps.push(Step::Key(key.to_owned()));
            } else {
                if !index.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                steps.push(Step::Index(index.parse().ok()?));
            }
            rest = &inside[end + 1..];
        }
    }
    Some(steps)
}

/// Runs something on a thread whose stack no expression within the limits can exhaust.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("expression".to_owned())
            .stack_size(EXPRESSION_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|e| TemplateError::Thread(e.to_string()))?;
        thread.join().map_err(|_| TemplateError::Failed {
            expression: String::new(),
            reason: "the parser of expressions gave up".to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_keys_and_indexes_make_a_bare_path() {
        let key = |text: &str| Step::Key(text.to_owned());
        assert_eq!(
            bare_path(r#"sequence["my-id"].outputs[0]['a b']"#),
            Some(vec![key("sequence"), key("my-id"), key("outputs"), Step::Index(0), key("a b")])
        );
        assert_eq!(bare_path("error"), Some(vec![key("error")]));
        for expression in [
            "true", "null", "a + b", "a.b()", "a[b]", "a[-1]", "a[1u]", "1", "a.", "a[", "a[]", "a.1",
            "a .b", "'a'",
        ] {
            assert_eq!(bare_path(expression), None, "{expression}");
        }
    }
}
