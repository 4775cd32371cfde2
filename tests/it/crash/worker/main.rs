//! A victim in a process of its own; see `tests/it/crash/`.

#[path = "../recipe_work.rs"]
#[expect(unreachable_pub, reason = "the tests share it")]
mod recipe_work;
#[path = "../victim.rs"]
#[expect(unreachable_pub, reason = "the tests share it")]
mod victim;

use std::{error::Error, process::ExitCode};

use leasehold::worker::StopSignals;
use leasehold_actors::testing::crash_points::{CrashPoints, Fault, Side};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::{Context, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

/// Points where a recipe's session says what it does: before and after it stages a task, and when a record was
/// acknowledged to it.
struct Said(CrashPoints);

#[derive(Default)]
struct Words {
    message: String,
    path: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "path" => self.path = format!("{value:?}"),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "path" {
            value.clone_into(&mut self.path);
        }
    }
}

impl<S: Subscriber> Layer<S> for Said {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        match words.message.as_str() {
            "staging" => self.0.come_by("recipe.stage", Side::Before, &words.path),
            "staged" => self.0.come_by("recipe.stage", Side::After, &words.path),
            "recorded" => self.0.come_by("recipe.recorded", Side::After, &words.path),
            _ => {}
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let signals = StopSignals::listen()?;
    let place = victim::Place {
        url: std::env::var("CRASH_DATABASE")?,
        namespace: std::env::var("CRASH_NAMESPACE")?,
        name: std::env::var("CRASH_NAME")?,
        ledger: std::env::var("CRASH_LEDGER")?.into(),
        platform: std::env::var("CRASH_PLATFORM").ok().filter(|platform| !platform.is_empty()),
    };
    let faults = std::env::var("CRASH_FAULTS")?;
    let faults: Vec<Fault> = faults.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let points = CrashPoints::with(faults);
    let said = Targets::new().with_target("leasehold::recipe::session", Level::DEBUG);
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(LevelFilter::WARN))
        .with(Said(points.clone()).with_filter(said))
        .init();
    let worker = victim::start(&place, &points).await?;
    let exit = worker.run_until_or_now(signals.first(), signals.second()).await?;
    Ok(ExitCode::from(exit.code()))
}
