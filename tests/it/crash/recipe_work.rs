//! What the crash worker does for recipes: one op with an effect outside, the callback of handoffs, and the points that
//! are inside a worker. A ledger without keys takes note of every effect.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::{
    recipe::{
        execution::ExecutionHandoff,
        op::{Ops, Task, TaskError},
    },
    worker::WorkerBuilder,
};
use leasehold_actors::testing::crash_points::{CrashPoints, Side};
use serde::Deserialize;

/// What the op is asked for.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    /// Takes so long, after its effect.
    ms: u64,
    /// Fails inside this occurrence.
    fails_in: Option<String>,
    /// Gives this.
    give: Option<serde_json::Value>,
}

fn note(ledger: &Path, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(ledger)?;
    file.write_all(format!("{line} {}\n", std::process::id()).as_bytes())
}

async fn effect(
    ledger: PathBuf,
    points: CrashPoints,
    platform: String,
    task: Task,
) -> Result<String, TaskError> {
    points.come_by("recipe.effect", Side::Before, &task.path);
    let Task { job, path, epoch, idempotency_key, .. } = &task;
    note(&ledger, &format!("effect {job} {path} {platform} {idempotency_key} {epoch}"))?;
    points.come_by("recipe.effect", Side::After, &task.path);
    let wanted: Wanted = task.input()?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(wanted.ms)) => {}
        stop = task.context.cancelled() => return Err(TaskError::system("stopped", format!("{stop:?}"))),
    }
    if wanted.fails_in.is_some_and(|outer| task.path.starts_with(&outer)) {
        return Err(TaskError::user("told-to", "as its input says"));
    }
    Ok(wanted.give.map_or_else(|| "null".to_owned(), |give| give.to_string()))
}

/// Serves recipes on this platform.
pub fn serve(builder: WorkerBuilder, platform: &str, ledger: &Path, points: &CrashPoints) -> WorkerBuilder {
    let mut ops = Ops::new();
    let (to, at, on) = (ledger.to_owned(), points.clone(), platform.to_owned());
    let op = move |task: Task| {
        let ran = effect(to.clone(), at.clone(), on.clone(), task);
        async move { ran.await.map(Into::into) }
    };
    ops.register_fn("effect", op).expect("a good name");
    let (to, at, on) = (ledger.to_owned(), points.clone(), platform.to_owned());
    let told = move |handoff: &ExecutionHandoff| {
        at.come_by("recipe.callback", Side::Before, &handoff.path);
        let line = format!("handoff {} {} {on}", handoff.job, handoff.path);
        note(&to, &line).expect("the ledger can be written");
        at.come_by("recipe.callback", Side::After, &handoff.path);
    };
    let (around, platform) = (points.clone(), format!("linux/{platform}"));
    builder.recipes(ops).on_handoff(told).intercept_recipes(move |store| around.recipes(store)).configure(
        move |settings| {
            let fact = leasehold_actors::domain::execution::Fact::Platform;
            settings.allocation.set(fact, &platform).expect("a platform of the tests is one");
        },
    )
}
