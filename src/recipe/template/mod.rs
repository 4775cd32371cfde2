//! Templates: `${{ … }}` in the values of a recipe.
//!
//! A bare path (`${{ sequence.probe.outputs.memory }}`) copies the recorded JSON text as it is; anything else is a CEL
//! expression. A template that is a whole value keeps its JSON type; text around it makes a string. What is put in is
//! data: it is never scanned again, and it cannot add keys, elements or further templates.
//!
//! `scan.rs` finds the holes and guards the parser, `term.rs` checks what the parser made of one, `evaluate.rs` and
//! `functions.rs` compute, `value.rs` holds numbers, `rendered.rs` is what comes out. Nothing here knows the time, the
//! environment or chance, and nothing of that kind can be registered.

mod evaluate;
mod expression;
mod functions;
mod rendered;
mod scan;
mod term;
mod trial;
mod value;
mod whole;

use std::sync::Arc;

use leasehold_actors::ports::recipe::JsonText;

pub(super) use self::scan::has_template;
use self::{
    evaluate::Evaluation,
    expression::{Expression, on_large_stack},
    scan::Piece,
};
pub use self::{
    rendered::{MissingSecret, Rendered, SecretPlace},
    trial::{Trial, TrialError},
    whole::ValueTemplate,
};
use super::{
    compiled::NodeNumber,
    exact::{Json, quote},
    limits::{MAX_QUOTED, MAX_RENDERED_BYTES},
};

/// What an expression can read, with every name resolved when the recipe was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    /// `inputs`: of the recipe that the expression stands in, an included one's own. An object.
    Inputs,
    /// `vars`, likewise. An object.
    Vars,
    /// `sequence.ID.outputs`, `parallel.ID.outputs`, `states.ID.outputs` (the latest visit's): the output of a node;
    /// `null` when it was skipped, nothing when it has none yet.
    Outputs(NodeNumber),
    /// `error`: what `catch` caught. An object.
    Error,
    /// `signal`: what came with the signal taken last.
    Signal,
    /// `transition.payload`: `null` in the first state.
    TransitionPayload,
    /// `job.id`
    JobId,
    /// `job.submitted_at`
    JobSubmittedAt,
}

/// Where values come from while a recipe runs.
pub trait Scope: Sync {
    /// The recorded JSON text behind a reference; none when there is no value yet.
    fn read(&self, reference: Reference) -> Option<JsonText>;
}

/// What names mean at one place of a recipe, while it is compiled.
pub(super) trait Names: Sync {
    /// Resolves the beginning of a chain of words; answers how many words it used.
    ///
    /// # Errors
    /// Why there is no such thing here.
    fn resolve(&self, chain: &[&str]) -> Result<(Reference, usize), String>;
}

/// Why a template has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// What it reads is not there. Nothing runs with a placeholder in its place.
    #[error("{path} has no value, in `${{{{ {expression} }}}}`")]
    Unresolved {
        /// What was read.
        path: String,
        /// The expression, cut to 200 characters.
        expression: String,
    },
    /// It cannot be computed.
    #[error("`${{{{ {expression} }}}}`: {reason}")]
    Failed {
        /// The expression, cut to 200 characters.
        expression: String,
        /// What is wrong.
        reason: String,
    },
    /// It takes too many steps, with all expressions of the same value.
    #[error(
        "`${{{{ {expression} }}}}` takes the evaluation over {} steps",
        super::limits::MAX_EVALUATION_STEPS
    )]
    TooCostly {
        /// The expression, cut to 200 characters.
        expression: String,
    },
    /// What comes out is larger than anything that can be recorded.
    #[error("the value of a template {reason}")]
    TooLarge {
        /// The limit that it breaks.
        reason: String,
    },
    /// What comes out cannot be recorded for another reason: NUL.
    #[error("the value of a template {reason}")]
    Unstorable {
        /// The rule that it breaks.
        reason: String,
    },
    /// This machine could not start a thread; says nothing about the recipe.
    #[error("cannot start a thread to evaluate an expression: {0}")]
    Thread(String),
}

impl TemplateError {
    /// A word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unresolved { .. } => "unresolved",
            Self::Failed { .. } => "expression_failed",
            Self::TooCostly { .. } => "expression_too_costly",
            Self::TooLarge { .. } => "template_too_large",
            Self::Unstorable { .. } => "template_unstorable",
            Self::Thread(_) => "no_thread",
        }
    }
}

/// An expression as errors quote it.
fn quoted(expression: &str) -> String {
    match expression.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}…", &expression[..end]),
        None => expression.to_owned(),
    }
}

/// One text of a recipe: a constant, an expression, or text with expressions in it.
#[derive(Debug, Clone)]
pub struct Template(Form);

#[derive(Debug, Clone)]
enum Form {
    /// JSON text.
    Constant(JsonText),
    Whole(Arc<Expression>),
    Text(Arc<[Part]>),
}

#[derive(Debug)]
enum Part {
    Text(String),
    Hole(Expression),
}

impl Template {
    /// Compiles one text.
    pub(super) fn compile(text: &str, names: &dyn Names) -> Result<Self, String> {
        let pieces = scan::pieces(text)?;
        if let [Piece::Hole(hole)] = pieces.as_slice() {
            return Ok(Self(Form::Whole(Arc::new(Expression::compile(hole, names)?))));
        }
        if let [Piece::Text(text)] = pieces.as_slice() {
            return Ok(Self::constant(&Json::String(text.clone())));
        }
        let parts = pieces.into_iter().map(|piece| match piece {
            Piece::Text(text) => Ok(Part::Text(text)),
            Piece::Hole(hole) => Expression::compile(hole, names).map(Part::Hole),
        });
        Ok(Self(Form::Text(parts.collect::<Result<Vec<_>, String>>()?.into())))
    }

    /// A value without any expression.
    pub(super) fn constant(value: &Json) -> Self {
        Self(Form::Constant(value.to_string().into()))
    }

    /// The JSON text, if no expression is in it.
    #[must_use]
    pub fn as_constant(&self) -> Option<&JsonText> {
        match &self.0 {
            Form::Constant(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is one expression and nothing around it.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.0, Form::Whole(_))
    }

    /// Its value as JSON text.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn render(&self, scope: &dyn Scope) -> Result<JsonText, TemplateError> {
        if let Form::Constant(text) = &self.0 {
            return Ok(Arc::clone(text));
        }
        let mut out = String::new();
        let write = |out: &mut String| self.write(&mut Evaluation::new(scope), out);
        if self.computes() {
            on_large_stack(|| write(&mut out))??;
        } else {
            write(&mut out)?;
        }
        rendered::check(&out)?;
        Ok(out.into())
    }

    /// Its value as a condition.
    ///
    /// # Errors
    /// [`TemplateError`], also when it is neither `true` nor `false`.
    pub fn holds(&self, scope: &dyn Scope) -> Result<bool, TemplateError> {
        let value = self.render(scope)?;
        match value.trim() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(TemplateError::Failed {
                expression: self.source(),
                reason: format!("a condition must be true or false, not {}", kind_of(other)),
            }),
        }
    }

    /// Its value as text: what amounts, platforms and references are read from. A number counts as its digits.
    ///
    /// # Errors
    /// [`TemplateError`], also when it is neither text nor a number.
    pub fn text(&self, scope: &dyn Scope) -> Result<String, TemplateError> {
        let value = self.render(scope)?;
        match Json::parse(&value) {
            Ok(Json::String(text) | Json::Number(text)) => Ok(text),
            _ => Err(TemplateError::Failed {
                expression: self.source(),
                reason: format!("text or a number is wanted here, not {}", kind_of(&value)),
            }),
        }
    }

    /// Whether it must run on the large stack.
    fn computes(&self) -> bool {
        match &self.0 {
            Form::Constant(_) => false,
            Form::Whole(expression) => expression.computes(),
            Form::Text(parts) => parts.iter().any(|part| match part {
                Part::Text(_) => false,
                Part::Hole(expression) => expression.computes(),
            }),
        }
    }

    /// The expression, or the text with its holes, for messages.
    fn source(&self) -> String {
        match &self.0 {
            Form::Constant(text) => quoted(text),
            Form::Whole(expression) => quoted(expression.source()),
            Form::Text(parts) => quoted(
                &parts
                    .iter()
                    .map(|part| match part {
                        Part::Text(text) => text.clone(),
                        Part::Hole(expression) => format!("${{{{ {} }}}}", expression.source()),
                    })
                    .collect::<String>(),
            ),
        }
    }

    fn write(&self, with: &mut Evaluation<'_>, out: &mut String) -> Result<(), TemplateError> {
        match &self.0 {
            Form::Constant(text) => out.push_str(text),
            Form::Whole(expression) => out.push_str(&expression.evaluate(with)?),
            Form::Text(parts) => {
                let mut text = String::new();
                for part in parts.iter() {
                    match part {
                        Part::Text(plain) => text.push_str(plain),
                        Part::Hole(expression) => text.push_str(&as_text(&expression.evaluate(with)?)),
                    }
                    room(text.len())?;
                }
                quote(&text, out);
            }
        }
        room(out.len())
    }
}

fn room(bytes: usize) -> Result<(), TemplateError> {
    if bytes > MAX_RENDERED_BYTES {
        return Err(TemplateError::TooLarge {
            reason: format!("is longer than {MAX_RENDERED_BYTES} bytes (1 MiB)"),
        });
    }
    Ok(())
}

/// A value inside a text: strings as they are, everything else as its JSON text.
fn as_text(value: &str) -> String {
    match value.trim_start().starts_with('"').then(|| Json::parse(value)) {
        Some(Ok(Json::String(text))) => text,
        _ => value.to_owned(),
    }
}

fn kind_of(value: &str) -> &'static str {
    Json::parse(value).map_or("something else", |json| json.kind())
}

#[cfg(test)]
mod tests;
