//! A value of any shape with templates in its texts: the inputs of an op, the payload of a transition.

use super::{
    Names, Rendered, Scope, SecretPlace, Template, TemplateError,
    evaluate::Evaluation,
    expression::on_large_stack,
    has_template,
    rendered::{self, escaped},
    room,
    scan::{self, Piece},
};
use crate::recipe::{
    exact::quote,
    mistake::Place,
    yaml::{Value, Yaml},
};

/// A value in which texts may be templates. Its shape is fixed: what is put in can add neither keys nor elements.
#[derive(Debug, Clone)]
pub struct ValueTemplate(Shape);

#[derive(Debug, Clone)]
enum Shape {
    Scalar(Template),
    /// `${{ secrets.NAME }}`
    Secret(String),
    List(Vec<Shape>),
    Map(Vec<(String, Shape)>),
}

impl ValueTemplate {
    /// `{}`
    #[must_use]
    pub fn empty() -> Self {
        Self(Shape::Map(Vec::new()))
    }

    /// Compiles a value; `report` hears of every mistake. Secrets are allowed only where `secrets` says so.
    pub(in crate::recipe) fn compile(
        yaml: &Yaml,
        names: &dyn Names,
        secrets: bool,
        report: &mut dyn FnMut(Place, String),
    ) -> Self {
        Self(shape(yaml, names, secrets, report))
    }

    /// The names of the secrets that it wants, in the order of the document.
    #[must_use]
    pub fn secrets(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.0.secrets(&mut names);
        names
    }

    /// Its value.
    ///
    /// # Errors
    /// [`TemplateError`] of the first template that has none.
    pub fn render(&self, scope: &dyn Scope) -> Result<Rendered, TemplateError> {
        let mut out = Rendered { text: String::new(), secrets: Vec::new() };
        let write = |out: &mut Rendered| self.0.write(&mut Evaluation::new(scope), "", out);
        if self.0.computes() {
            on_large_stack(|| write(&mut out))??;
        } else {
            write(&mut out)?;
        }
        rendered::check(&out.text)?;
        Ok(out)
    }
}

/// Bounded by the depth of the tree.
fn shape(yaml: &Yaml, names: &dyn Names, secrets: bool, report: &mut dyn FnMut(Place, String)) -> Shape {
    match &yaml.value {
        Value::List(elements) => {
            Shape::List(elements.iter().map(|element| shape(element, names, secrets, report)).collect())
        }
        Value::Map(members) => Shape::Map(
            members
                .iter()
                .map(|(key, value)| {
                    if has_template(&key.name) {
                        report(key.place, "a key cannot be a template".to_owned());
                    }
                    (key.name.clone(), shape(value, names, secrets, report))
                })
                .collect(),
        ),
        Value::Text(text) => match secret(text) {
            Some(Ok(name)) if secrets => Shape::Secret(name),
            Some(Ok(_)) => {
                report(
                    yaml.place,
                    "secrets can be used in the inputs of an op only, and only of one that runs somewhere: not of \
                     `sleep`, `wait_for_signal` and `child_job`"
                        .to_owned(),
                );
                Shape::Scalar(Template::constant(&yaml.to_json()))
            }
            Some(Err(reason)) => {
                report(yaml.place, reason);
                Shape::Scalar(Template::constant(&yaml.to_json()))
            }
            None => Shape::Scalar(Template::compile(text, names).unwrap_or_else(|reason| {
                report(yaml.place, reason);
                Template::constant(&yaml.to_json())
            })),
        },
        _ => Shape::Scalar(Template::constant(&yaml.to_json())),
    }
}

/// The name in `${{ secrets.NAME }}`; none when the text does not begin with `secrets`.
fn secret(text: &str) -> Option<Result<String, String>> {
    let pieces = scan::pieces(text).ok()?;
    let [Piece::Hole(hole)] = pieces.as_slice() else { return None };
    let name = hole.strip_prefix("secrets.")?;
    let fits = !name.is_empty()
        && name.len() <= 128
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    Some(if fits {
        Ok(name.to_owned())
    } else {
        Err("write a secret as `${{ secrets.NAME }}`, alone: letters, digits and `_`".to_owned())
    })
}

impl Shape {
    fn computes(&self) -> bool {
        match self {
            Self::Scalar(template) => template.computes(),
            Self::Secret(_) => false,
            Self::List(elements) => elements.iter().any(Self::computes),
            Self::Map(members) => members.iter().any(|(_, value)| value.computes()),
        }
    }

    fn secrets<'a>(&'a self, names: &mut Vec<&'a str>) {
        match self {
            Self::Scalar(_) => {}
            Self::Secret(name) => names.push(name),
            Self::List(elements) => elements.iter().for_each(|element| element.secrets(names)),
            Self::Map(members) => members.iter().for_each(|(_, value)| value.secrets(names)),
        }
    }

    fn write(
        &self,
        with: &mut Evaluation<'_>,
        pointer: &str,
        out: &mut Rendered,
    ) -> Result<(), TemplateError> {
        match self {
            Self::Scalar(template) => template.write(with, &mut out.text)?,
            Self::Secret(name) => {
                quote(&format!("${{{{ secrets.{name} }}}}"), &mut out.text);
                out.secrets.push(SecretPlace { pointer: pointer.to_owned(), name: name.clone() });
            }
            Self::List(elements) => {
                out.text.push('[');
                for (n, element) in elements.iter().enumerate() {
                    if n > 0 {
                        out.text.push(',');
                    }
                    element.write(with, &format!("{pointer}/{n}"), out)?;
                }
                out.text.push(']');
            }
            Self::Map(members) => {
                out.text.push('{');
                for (n, (key, value)) in members.iter().enumerate() {
                    if n > 0 {
                        out.text.push(',');
                    }
                    quote(key, &mut out.text);
                    out.text.push(':');
                    value.write(with, &format!("{pointer}/{}", escaped(key)), out)?;
                }
                out.text.push('}');
            }
        }
        room(out.text.len())
    }
}
