//! The flags of `submit` and `run` for recipes, and the pinned recipe that they describe.

use std::path::Path;

use clap::Args;
use leasehold_actors::domain::{
    RawJson, RecipeSpec,
    execution::{Field, Requirements},
};
use serde_json::value::RawValue;

use super::error::{CliError, Exit};
use crate::recipe::{Mistakes, bundle::Bundle, compile, compiled::InputType, inputs};

const RECIPE: &str = "Recipe";
const NOT_RECIPE: [&str; 4] = ["image", "http", "handler", "workflow"];

/// What belongs to `--recipe`.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct RecipeArgs {
    /// An input: NAME=TEXT, or NAME:=JSON; may be repeated
    #[arg(long, value_name = "NAME=VALUE", help_heading = RECIPE, conflicts_with_all = NOT_RECIPE, allow_hyphen_values = true)]
    input: Vec<String>,
    /// Cores that every task needs, whatever the recipe says
    #[arg(long, value_name = "AMOUNT", help_heading = RECIPE, conflicts_with_all = NOT_RECIPE, allow_hyphen_values = true)]
    require_cpu: Option<String>,
    /// Memory that every task needs
    #[arg(long, value_name = "AMOUNT", help_heading = RECIPE, conflicts_with_all = NOT_RECIPE, allow_hyphen_values = true)]
    require_memory: Option<String>,
    /// Scratch space that every task needs
    #[arg(long, value_name = "AMOUNT", help_heading = RECIPE, conflicts_with_all = NOT_RECIPE, allow_hyphen_values = true)]
    require_ephemeral_storage: Option<String>,
    /// Platform that every task needs, such as linux/arm64
    #[arg(long, value_name = "PLATFORM", help_heading = RECIPE, conflicts_with_all = NOT_RECIPE)]
    require_platform: Option<String>,
    /// Image that the worker of every task must itself run in
    #[arg(long, value_name = "IMAGE", help_heading = RECIPE, conflicts_with_all = NOT_RECIPE)]
    require_image: Option<String>,
}

impl RecipeArgs {
    /// Reads the recipe with everything that it includes, and pins it.
    pub(super) fn spec(&self, file: &Path) -> Result<RecipeSpec, CliError> {
        let wrong = |mistakes: Mistakes| {
            let more = match mistakes.mistakes.len() {
                0 | 1 => String::new(),
                n => format!(" (and {} more: leasehold recipe check {})", n - 1, file.display()),
            };
            let first = mistakes.mistakes.first().map_or_else(String::new, ToString::to_string);
            CliError::new(Exit::of_file(file), format!("{first}{more}"))
        };
        let bundle = Bundle::read(file).map_err(wrong)?;
        let recipe = compile(&bundle).map_err(wrong)?;
        let given = self.given()?;
        let bound = inputs::bind(&recipe.inputs, &given).map_err(|e| {
            // NAME=3 is a text, which surprises once.
            let typed = recipe.inputs.get(&e.name).is_some_and(|input| {
                e.reason.starts_with("must be") && !matches!(input.kind, InputType::String)
            });
            let how =
                if typed { format!("; write JSON behind :=, as in {}:=3", e.name) } else { String::new() };
            CliError::usage(format!("--input: {e}{how}"))
        })?;
        let raw = |text: &str| {
            RawJson::new(text)
                .map_err(|e| CliError::usage(format!("{} cannot be pinned: {e}", file.display())))
        };
        let required = serde_json::to_string(&self.required()?)
            .map_err(|e| CliError::usage(format!("--require-…: {e}")))?;
        Ok(RecipeSpec {
            recipe: recipe.id,
            job_type: recipe.job_type,
            language: recipe.language,
            digest: bundle.digest(),
            bundle: raw(&bundle.to_json())?,
            inputs: raw(&bound)?,
            require: raw(&required)?,
        })
    }

    /// The inputs as one object; each value stays as it was written.
    fn given(&self) -> Result<String, CliError> {
        let mut object = String::from("{");
        for (number, item) in self.input.iter().enumerate() {
            let refuse =
                |why: &str| CliError::usage(format!("--input {item:?} {why}; write NAME=TEXT or NAME:=JSON"));
            let (name, value) = item.split_once('=').ok_or_else(|| refuse("has no ="))?;
            let (name, json) = match name.strip_suffix(':') {
                Some(name) => {
                    serde_json::from_str::<&RawValue>(value)
                        .map_err(|e| refuse(&format!("is no JSON ({e})")))?;
                    (name, value.to_owned())
                }
                None => (name, serde_json::Value::from(value).to_string()),
            };
            if name.is_empty() {
                return Err(refuse("has no name"));
            }
            let comma = if number == 0 { "" } else { "," };
            object.push_str(&format!("{comma}{}:{json}", serde_json::Value::from(name)));
        }
        object.push('}');
        crate::submission::json::check("--input", &object).map_err(|e| CliError::usage(e.to_string()))?;
        Ok(object)
    }

    fn required(&self) -> Result<Requirements, CliError> {
        let mut required = Requirements::default();
        for (field, text) in [
            (Field::Cpu, &self.require_cpu),
            (Field::Memory, &self.require_memory),
            (Field::EphemeralStorage, &self.require_ephemeral_storage),
            (Field::Platform, &self.require_platform),
            (Field::Image, &self.require_image),
        ] {
            if let Some(text) = text {
                required.set(field, text).map_err(|e| CliError::usage(format!("--require-{e}")))?;
            }
        }
        Ok(required)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn example() -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/recipes/memory.yaml"))
    }

    #[test]
    fn a_recipe_is_pinned_with_its_inputs_and_overrides() {
        let args = RecipeArgs {
            input: vec!["size=1Gi = all".to_owned()],
            require_memory: Some("512Mi".to_owned()),
            ..RecipeArgs::default()
        };
        let spec = args.spec(&example()).unwrap();
        assert_eq!((spec.recipe.as_str(), spec.job_type.as_str()), ("memory", "recipe"));
        assert_eq!(spec.inputs.get(), r#"{"size":"1Gi = all"}"#);
        assert_eq!(spec.require.get(), r#"{"resources":{"memory":"512Mi"}}"#);
        let pinned = Bundle::parse(spec.bundle.get()).unwrap();
        assert_eq!(pinned.digest(), spec.digest);
        let given = RecipeArgs {
            input: vec!["a:=[1.50, 1e400]".to_owned(), "b=true".to_owned()],
            ..RecipeArgs::default()
        };
        assert_eq!(given.given().unwrap(), r#"{"a":[1.50, 1e400],"b":"true"}"#);
    }

    #[test]
    fn a_text_in_the_place_of_a_number_is_told_how_to_write_numbers() {
        let folder = std::env::temp_dir().join(format!("leasehold-recipe-args-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("r.yaml");
        std::fs::write(&file, "id: r\ninputs: { n: { type: integer } }\nop: a\n").unwrap();
        let args = RecipeArgs { input: vec!["n=3".to_owned()], ..RecipeArgs::default() };
        let line = args.spec(&file).expect_err("a text").line();
        assert!(
            line.ends_with("must be a whole number, not a string; write JSON behind :=, as in n:=3"),
            "{line}"
        );
        let args = RecipeArgs { input: vec!["n:=3".to_owned()], ..RecipeArgs::default() };
        assert_eq!(args.spec(&file).unwrap().inputs.get(), r#"{"n":3}"#);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn mistakes_name_what_to_write() {
        let with = |input: &str| RecipeArgs { input: vec![input.to_owned()], ..RecipeArgs::default() };
        for (args, says) in [
            (with("size"), "NAME=TEXT"),
            (with("=x"), "has no name"),
            (with("size:=nope"), "is no JSON"),
            (with("size:=3"), "size"),
            (with("colour=red"), "colour"),
            (RecipeArgs { input: vec!["size=a".to_owned(); 2], ..RecipeArgs::default() }, "--input"),
            (
                RecipeArgs { require_memory: Some("500K".to_owned()), ..RecipeArgs::default() },
                "--require-memory",
            ),
            (
                RecipeArgs { require_platform: Some("a/b/c/d".to_owned()), ..RecipeArgs::default() },
                "--require-platform",
            ),
        ] {
            let error = args.spec(&example()).expect_err(says).line();
            assert!(error.contains(says), "{error}");
        }
        let error = RecipeArgs::default().spec(Path::new("/no/such.yaml")).unwrap_err();
        assert_eq!((error.exit, error.line().contains("such.yaml")), (Exit::NotFound, true));
    }
}
