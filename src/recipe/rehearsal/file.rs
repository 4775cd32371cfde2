//! A test file, read: the recipe that it is about, and its tests with the places of everything that a report names.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use leasehold_actors::{
    domain::{
        FailureKind, JobState, RawJson, RecipeSpec, WorkerId,
        execution::{Allocation, Fact, Field, Requirements},
    },
    ports::recipe::JsonText,
};

use super::{pattern::Pattern, play::ops_of, shapes};
use crate::recipe::{
    bundle::{self, Bundle},
    compile,
    compiled::Recipe,
    exact::Json,
    grammar, inputs,
    mistake::{Mistakes, Place},
    op::TaskError,
    ops::secrets::SHORTEST_VALUE,
    yaml::{self, Value, Yaml},
};

/// Tests of one recipe.
#[derive(Debug)]
pub struct Suite {
    pub(super) recipe: PathBuf,
    pub(super) file: String,
    pub(super) bundle: Arc<Bundle>,
    /// The ops that the recipe names.
    pub(super) ops: BTreeSet<String>,
    pub(super) tests: Vec<Arc<Test>>,
}

/// One test.
#[derive(Debug)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) spec: RecipeSpec,
    pub(super) payload: String,
    pub(super) secrets: BTreeMap<String, String>,
    pub(super) workers: Vec<Worker>,
    pub(super) fixtures: Vec<Fixture>,
    pub(super) signals: Vec<Signal>,
    pub(super) children: Vec<Child>,
    pub(super) crash: bool,
    pub(super) expect: Expect,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) allocation: Allocation,
    pub(super) ops: Option<BTreeSet<String>>,
}

#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) place: Place,
    pub(super) op: Option<String>,
    pub(super) path: Option<Pattern>,
    pub(super) attempt: Option<i32>,
    pub(super) replies: Vec<Reply>,
    /// One reply for every call; otherwise each is for one.
    pub(super) repeats: bool,
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) place: Place,
    pub(super) inputs: Option<(Place, Json)>,
    pub(super) takes: Duration,
    pub(super) result: Result<JsonText, TaskError>,
    pub(super) asks: Option<Requirements>,
}

#[derive(Debug)]
pub(super) struct Signal {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) at: Duration,
    pub(super) data: String,
    pub(super) key: Option<String>,
    pub(super) taken: bool,
}

#[derive(Debug)]
pub(super) struct Child {
    pub(super) place: Place,
    pub(super) path: Option<Pattern>,
    pub(super) takes: Duration,
    pub(super) state: JobState,
    pub(super) output: Option<String>,
    pub(super) failure: Option<TaskError>,
}

#[derive(Debug)]
pub(super) struct Expect {
    /// None: it waits.
    pub(super) state: (Place, Option<JobState>),
    pub(super) output: Option<(Place, Json)>,
    pub(super) failure: Option<ExpectedFailure>,
    pub(super) tasks: Option<(Place, Vec<(Place, String)>)>,
    pub(super) handoffs: Option<(Place, Vec<ExpectedHandoff>)>,
    pub(super) took: Option<(Place, Duration)>,
    pub(super) payload: Option<(Place, Json)>,
}

#[derive(Debug)]
pub(super) struct ExpectedFailure {
    pub(super) place: Place,
    pub(super) kind: Option<FailureKind>,
    pub(super) code: Option<String>,
    pub(super) message: Option<String>,
}

#[derive(Debug)]
pub(super) struct ExpectedHandoff {
    pub(super) place: Place,
    pub(super) path: String,
    pub(super) from: Option<String>,
    pub(super) needs: Option<Requirements>,
}

impl Suite {
    /// Reads a test file, and the recipe that it names.
    ///
    /// # Errors
    /// [`Mistakes`] in either; the recipe's own are told under its own files' names.
    pub fn read(path: &Path) -> Result<Self, Mistakes> {
        let file = path.display().to_string();
        let refuse = |place, message: String| Mistakes::one(&file, place, message);
        let text = bundle::read_file(path).map_err(|reason| refuse(Place::default(), reason))?;
        let yaml = yaml::read(&file, &text)?;
        let mut mistakes = Mistakes::default();
        grammar::check(&yaml, &shapes::FILE, &mut |place, message| mistakes.add(&file, place, message));
        mistakes.none_or()?;
        let named = yaml.get("recipe").expect("it was checked");
        let recipe = path.parent().unwrap_or_else(|| Path::new("")).join(named.text().unwrap_or_default());
        let shown = recipe.display().to_string();
        if !recipe.is_file() {
            return Err(refuse(named.place, format!("there is no recipe {shown}")));
        }
        let bundle = Bundle::read(&recipe);
        let read = bundle.and_then(|bundle| compile(&bundle).map(|compiled| (bundle, compiled)));
        let (bundle, compiled) = read.map_err(|mut wrong| {
            wrong.below(&recipe);
            wrong
        })?;
        let mut reader =
            Reader { file: &file, recipe: &compiled, bundle: &bundle, mistakes: Mistakes::default() };
        let tests = yaml.get("tests").map_or(&[][..], Yaml::elements);
        let tests = tests.iter().filter_map(|test| reader.test(test)).map(Arc::new).collect();
        reader.mistakes.none_or()?;
        let mut ops = BTreeSet::new();
        ops_of(&compiled.root, &mut ops);
        Ok(Self { recipe, file, bundle: Arc::new(bundle), ops, tests })
    }
}

struct Reader<'a> {
    file: &'a str,
    recipe: &'a Recipe,
    bundle: &'a Bundle,
    mistakes: Mistakes,
}

impl Reader<'_> {
    fn refuse(&mut self, place: Place, message: impl Into<String>) {
        self.mistakes.add(self.file, place, message);
    }

    fn test(&mut self, yaml: &Yaml) -> Option<Test> {
        let elements = |key: &str| yaml.get(key).map_or(&[][..], Yaml::elements);
        let mut workers: Vec<Worker> =
            elements("workers").iter().filter_map(|worker| self.worker(worker)).collect();
        let mut ids = BTreeSet::new();
        for (worker, yaml) in workers.iter().zip(elements("workers")) {
            if !ids.insert(worker.id.to_string()) {
                self.refuse(yaml.place, format!("the worker {} comes twice", worker.id));
            }
        }
        if workers.is_empty() {
            let id = WorkerId::new("worker").expect("a plain name");
            workers.push(Worker { id, allocation: Allocation::default(), ops: None });
        }
        let fixtures = elements("ops").iter().map(|fixture| self.fixture(fixture)).collect();
        let signals = elements("signals").iter().map(signal).collect();
        let children = elements("children").iter().map(|child| self.child(child)).collect();
        let expect = self.expect(yaml.get("expect")?);
        Some(Test {
            name: text(yaml, "name").unwrap_or_default(),
            place: yaml.place,
            spec: self.spec(yaml)?,
            payload: self.payload(yaml),
            secrets: self.secrets(yaml.get("secrets")),
            workers,
            fixtures,
            signals,
            children,
            crash: yaml.get("mode").and_then(Yaml::text) == Some("crash"),
            expect,
        })
    }

    fn spec(&mut self, yaml: &Yaml) -> Option<RecipeSpec> {
        let given = yaml.get("inputs");
        let place = given.map_or(yaml.place, |given| given.place);
        let json = given.map_or_else(|| "{}".to_owned(), |given| given.to_json().to_string());
        let bound = match inputs::bind(&self.recipe.inputs, &json) {
            Ok(bound) => bound,
            Err(error) => {
                self.refuse(place, format!("inputs: {error}"));
                return None;
            }
        };
        let mut require = Requirements::default();
        if let Some(yaml) = yaml.get("require") {
            require = self.requirements(yaml);
        }
        let require = serde_json::to_string(&require).expect("texts under fixed keys always serialize");
        let raw = |text: &str| RawJson::new(text);
        match (raw(&self.bundle.to_json()), raw(&bound), raw(&require)) {
            (Ok(bundle), Ok(inputs), Ok(require)) => Some(RecipeSpec {
                recipe: self.recipe.id.clone(),
                job_type: self.recipe.job_type.clone(),
                language: self.recipe.language,
                digest: self.bundle.digest(),
                bundle,
                inputs,
                require,
            }),
            (bundle, inputs, require) => {
                for error in [bundle, inputs, require].into_iter().filter_map(Result::err) {
                    self.refuse(place, format!("cannot be pinned: {error}"));
                }
                None
            }
        }
    }

    fn payload(&mut self, yaml: &Yaml) -> String {
        let Some(payload) = yaml.get("payload") else { return "null".to_owned() };
        if !matches!(payload.value, Value::Map(_) | Value::Null) {
            self.refuse(payload.place, format!("`payload` must be a map or null, not {}", payload.kind()));
        }
        payload.to_json().to_string()
    }

    fn secrets(&mut self, yaml: Option<&Yaml>) -> BTreeMap<String, String> {
        let Some(yaml) = yaml else { return BTreeMap::new() };
        let mut secrets = BTreeMap::new();
        if !matches!(yaml.value, Value::Map(_)) {
            self.refuse(yaml.place, format!("`secrets` must be a map of texts, not {}", yaml.kind()));
        }
        for (key, value) in yaml.members() {
            match value.text().filter(|text| text.len() >= SHORTEST_VALUE) {
                Some(text) => drop(secrets.insert(key.name.clone(), text.to_owned())),
                None => self.refuse(value.place, "a secret is text of at least 4 bytes"),
            }
        }
        secrets
    }

    fn worker(&mut self, yaml: &Yaml) -> Option<Worker> {
        let id = yaml.get("id")?;
        let named = match WorkerId::new(id.text()?) {
            Ok(named) => named,
            Err(error) => {
                self.refuse(id.place, error.to_string());
                return None;
            }
        };
        let mut allocation = Allocation::default();
        for (key, value) in yaml.get("allocation").map_or(&[][..], Yaml::members) {
            let Some(fact) = Fact::ALL.into_iter().find(|fact| fact.as_str() == key.name) else { continue };
            if let Err(error) = allocation.set(fact, &written(value)) {
                self.refuse(value.place, error.to_string());
            }
        }
        let ops = yaml.get("ops").map(|ops| ops.elements().iter().filter_map(Yaml::text));
        Some(Worker { id: named, allocation, ops: ops.map(|ops| ops.map(str::to_owned).collect()) })
    }

    fn requirements(&mut self, yaml: &Yaml) -> Requirements {
        let mut needs = Requirements::default();
        for (key, value) in yaml.members() {
            let Some(field) = FIELDS.into_iter().find(|field| field.as_str() == key.name) else { continue };
            if let Err(error) = needs.set(field, &written(value)) {
                self.refuse(value.place, error.to_string());
            }
        }
        needs
    }

    fn fixture(&mut self, yaml: &Yaml) -> Fixture {
        if yaml.get("op").or_else(|| yaml.get("path")).is_none() {
            self.refuse(yaml.place, "a fixture says for which `op` it is, or at which `path`, or both");
        }
        let own = yaml.members().iter().find(|(key, _)| !SELECTORS.contains(&key.name.as_str()));
        let calls = yaml.get("calls");
        if let (Some(_), Some((key, _))) = (calls, own) {
            self.refuse(key.place, format!("`{}` belongs into `calls`", key.name));
        }
        let replies = match calls {
            Some(calls) => calls.elements().iter().map(|call| self.reply(call)).collect(),
            None => vec![self.reply(yaml)],
        };
        Fixture {
            place: yaml.place,
            op: text(yaml, "op"),
            path: self.pattern(yaml.get("path")),
            attempt: yaml.get("attempt").and_then(|attempt| written(attempt).parse().ok()),
            replies,
            repeats: calls.is_none(),
        }
    }

    fn pattern(&mut self, yaml: Option<&Yaml>) -> Option<Pattern> {
        let yaml = yaml?;
        match Pattern::parse(yaml.text().unwrap_or_default()) {
            Ok(pattern) => Some(pattern),
            Err(reason) => {
                self.refuse(yaml.place, reason);
                None
            }
        }
    }

    fn reply(&mut self, yaml: &Yaml) -> Reply {
        let (output, failed) = (yaml.get("output"), yaml.get("failure").map(failure));
        if let (Some(output), Some(_)) = (output, &failed) {
            self.refuse(output.place, "a call succeeds with `output` or fails with `failure`, not both");
        }
        let asks = yaml.get("suspend_execution").and_then(|patch| {
            if failed.is_some() {
                self.refuse(patch.place, "a failure asks for nothing");
            }
            match serde_json::from_str(&patch.to_json().to_string()) {
                Ok(patch) => Some(patch),
                Err(error) => {
                    self.refuse(patch.place, format!("suspend_execution: {error}"));
                    None
                }
            }
        });
        let output = || output.map_or_else(|| "null".to_owned(), |output| output.to_json().to_string());
        Reply {
            place: yaml.place,
            inputs: yaml.get("inputs").map(|inputs| (inputs.place, inputs.to_json())),
            takes: millis(yaml, "takes"),
            result: failed.map_or_else(|| Ok(output().into()), Err),
            asks,
        }
    }

    fn child(&mut self, yaml: &Yaml) -> Child {
        let state = text(yaml, "state").unwrap_or_else(|| "COMPLETED".to_owned());
        let state = state.parse().unwrap_or(JobState::Completed);
        let failed = yaml.get("failure");
        if let Some(failed) = failed.filter(|_| state != JobState::Failed) {
            self.refuse(failed.place, "only a child that ends as FAILED has a failure");
        }
        if let (Some(output), true) = (yaml.get("output"), state != JobState::Completed) {
            self.refuse(output.place, "only a child that ends as COMPLETED has an output");
        }
        if failed.is_none() && state == JobState::Failed {
            self.refuse(yaml.place, "a child that ends as FAILED has a `failure`");
        }
        Child {
            place: yaml.place,
            path: self.pattern(yaml.get("path")),
            takes: millis(yaml, "takes"),
            state,
            output: yaml.get("output").map(|output| output.to_json().to_string()),
            failure: failed.map(failure),
        }
    }

    fn expect(&mut self, yaml: &Yaml) -> Expect {
        let json = |key: &str| yaml.get(key).map(|value| (value.place, value.to_json()));
        let state = yaml.get("state");
        let tasks = yaml.get("tasks").map(|tasks| {
            let each = tasks.elements().iter();
            (tasks.place, each.map(|task| (task.place, task.text().unwrap_or_default().to_owned())).collect())
        });
        let handoffs = yaml.get("handoffs").map(|handoffs| {
            if !matches!(handoffs.value, Value::List(_)) {
                self.refuse(
                    handoffs.place,
                    format!("`handoffs` must be a list of handoffs, not {}", handoffs.kind()),
                );
            }
            (handoffs.place, handoffs.elements().iter().map(|handoff| self.handoff(handoff)).collect())
        });
        Expect {
            state: (
                state.map_or(yaml.place, |state| state.place),
                state.and_then(Yaml::text).and_then(|state| state.parse().ok()),
            ),
            output: json("output"),
            failure: yaml.get("failure").map(|failure| ExpectedFailure {
                place: failure.place,
                kind: text(failure, "kind").and_then(|kind| kind.parse().ok()),
                code: text(failure, "code"),
                message: text(failure, "message"),
            }),
            tasks,
            handoffs,
            took: yaml.get("took").map(|took| (took.place, millis(yaml, "took"))),
            payload: json("payload"),
        }
    }

    fn handoff(&mut self, yaml: &Yaml) -> ExpectedHandoff {
        let (file, mistakes) = (self.file, &mut self.mistakes);
        grammar::check(yaml, &shapes::HANDOFF, &mut |place, message| mistakes.add(file, place, message));
        ExpectedHandoff {
            place: yaml.place,
            path: text(yaml, "path").unwrap_or_default(),
            from: text(yaml, "from"),
            needs: yaml.get("needs").map(|needs| self.requirements(needs)),
        }
    }
}

const SELECTORS: [&str; 4] = ["op", "path", "attempt", "calls"];
const FIELDS: [Field; 5] =
    [Field::Cpu, Field::Memory, Field::EphemeralStorage, Field::Platform, Field::Image];

fn signal(yaml: &Yaml) -> Signal {
    Signal {
        place: yaml.place,
        name: text(yaml, "name").unwrap_or_default(),
        at: millis(yaml, "at"),
        data: yaml.get("data").map_or_else(|| "null".to_owned(), |data| data.to_json().to_string()),
        key: text(yaml, "key"),
        taken: yaml.get("taken").is_none_or(|taken| taken.value != Value::Bool(false)),
    }
}

fn failure(yaml: &Yaml) -> TaskError {
    TaskError {
        kind: text(yaml, "kind").and_then(|kind| kind.parse().ok()).unwrap_or(FailureKind::User),
        code: text(yaml, "code").unwrap_or_default(),
        message: text(yaml, "message").unwrap_or_else(|| "as the test says".to_owned()),
        exit_code: None,
    }
}

fn text(yaml: &Yaml, key: &str) -> Option<String> {
    yaml.get(key).and_then(Yaml::text).map(str::to_owned)
}

/// Text or a number, as it was written.
fn written(yaml: &Yaml) -> String {
    match &yaml.value {
        Value::Text(text) | Value::Number(text) => text.clone(),
        _ => String::new(),
    }
}

fn millis(yaml: &Yaml, key: &str) -> Duration {
    let text = yaml.get(key).and_then(Yaml::text);
    let millis = text.and_then(|text| grammar::duration(text).ok()).unwrap_or_default();
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}
