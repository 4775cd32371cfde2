use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_actors::{
    clock::Anchor,
    domain::{CommandId, NewJob, ProcessId, WorkerId},
    fence::{Terms, Watch},
    ports::{Claimant, LeaseStore as _, OpenClaim},
    testing::{MemoryStore, StoreHarness as _},
};
use serde::Deserialize;

use super::*;
use crate::workload::{Workloads, heartbeat::HeartbeatProbe};

/// A job that was claimed from a memory store, and the owner's side of its lease.
struct Claimed {
    store: MemoryStore,
    grant: Arc<Grant>,
    watch: Watch,
    context: LeaseContext,
}

/// Submits a HANDLER job, claims it, and lets it stop within `stop_grace`.
async fn claimed(payload: &str, stop_grace: Duration) -> Claimed {
    let store = MemoryStore::new();
    let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: "work".to_owned() });
    job.payload = payload.to_owned();
    store.submit(&job).await;
    let lease = Duration::from_secs(30);
    let owner = Claimant {
        namespace: Namespace::default(),
        worker: WorkerId::new("w").expect("a plain name"),
        process: ProcessId::generate(),
    };
    let request = OpenClaim {
        owner,
        command: CommandId::generate(),
        repeat: false,
        routes: Arc::new([Route::handler("work")]),
        limit: 1,
        lease,
        facts: None,
    };
    let grant = Arc::new(store.claim(&request).await.expect("the memory store answers").grants.remove(0));
    let watch = Watch::unfenced(Terms {
        job: grant.authority.job,
        epoch: grant.authority.epoch,
        deadline: Anchor::now().after(lease),
        lease,
        stop_grace,
    });
    let context = LeaseContext::new(Arc::clone(&grant), store.port(), &watch);
    Claimed { store, grant, watch, context }
}

impl Claimed {
    async fn run(&self, handlers: &Handlers) -> WorkOutcome {
        handlers.run(&self.grant, self.context.clone(), &Handle::current()).await
    }
}

fn one<T, R, F, Fut>(handler: F) -> Handlers
where
    T: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
    F: Fn(Job<T>, LeaseHandle) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
{
    let mut handlers = Handlers::default();
    handlers.register("work", handler);
    handlers
}

fn failure(outcome: WorkOutcome) -> Failure {
    match outcome {
        WorkOutcome::Failed(failure) => failure,
        other => panic!("this is no failure: {other:?}"),
    }
}

const GRACE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_handler_gets_its_payload_and_its_result_is_the_output() {
    #[derive(Deserialize)]
    struct Email {
        to: String,
    }
    let handlers = one(|job: Job<Email>, lease: LeaseHandle| async move {
        assert_eq!((job.id, job.attempt), (lease.job(), lease.attempt()));
        assert!(lease.epoch().0 > 0 && lease.is_live() && lease.remaining() > Duration::from_secs(20));
        lease.progress(&serde_json::json!({"half": true})).await?;
        Ok(format!("sent to {}", job.payload.to))
    });
    let claimed = claimed(r#"{"to":"ann"}"#, GRACE).await;
    let outcome = claimed.run(&handlers).await;
    let output = Some(r#""sent to ann""#.to_owned());
    assert_eq!(outcome, WorkOutcome::Completed { exit_code: None, output });
    assert_eq!(claimed.store.progress(claimed.grant.authority.job).as_deref(), Some(r#"{"half":true}"#));
    assert!(claimed.watch.entry().is_over());
}

#[tokio::test]
async fn no_result_is_no_output() {
    let handlers = one(|_: Job<serde_json::Value>, _| async move { Ok(()) });
    let outcome = claimed("null", GRACE).await.run(&handlers).await;
    assert_eq!(outcome, WorkOutcome::Completed { exit_code: None, output: None });
}

#[tokio::test]
async fn errors_become_the_failures_that_they_name() {
    let how = |text: &str| format!("\"{text}\"");
    let handlers = one(|job: Job<String>, _| async move {
        match job.payload.as_str() {
            "user" => Err(HandlerError::user("no_such_address", "ann has moved")),
            "system" => Err(HandlerError::system("smtp_down", "connection refused")),
            "timeout" => Err(HandlerError::timeout("no answer within a minute")),
            "unasked" => Err(HandlerError::stopped()),
            _ => Ok("x".parse::<i32>()?),
        }
    });
    for (name, kind, code) in [
        ("user", FailureKind::User, "no_such_address"),
        ("system", FailureKind::System, "smtp_down"),
        ("timeout", FailureKind::Timeout, "timeout"),
        ("unasked", FailureKind::User, "handler_error"),
        ("question mark", FailureKind::User, "handler_error"),
    ] {
        let failed = failure(claimed(&how(name), GRACE).await.run(&handlers).await);
        assert_eq!((failed.kind, failed.code.as_str()), (kind, code), "{name}: {failed:?}");
    }
}

#[tokio::test]
async fn an_error_tells_its_causes_too() {
    #[derive(Debug, thiserror::Error)]
    #[error("the letter was not sent")]
    struct Outer(#[source] std::num::ParseIntError);
    let handlers = one(|_: Job<()>, _| async move { "x".parse::<i32>().map_err(Outer).map_err(Into::into) });
    let failed = failure(claimed("null", GRACE).await.run(&handlers).await);
    assert_eq!(failed.message, "the letter was not sent: invalid digit found in string");
}

#[tokio::test]
async fn a_payload_of_another_shape_never_reaches_the_handler() {
    static CALLED: AtomicBool = AtomicBool::new(false);
    let handlers = one(|_: Job<u32>, _| async move {
        CALLED.store(true, Ordering::SeqCst);
        Ok(())
    });
    let failed = failure(claimed(r#"{"not":"a number"}"#, GRACE).await.run(&handlers).await);
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::User, "bad_payload"));
    assert!(failed.message.contains("expected u32"), "{failed:?}");
    assert!(!CALLED.load(Ordering::SeqCst));
}

/// SH-12
#[tokio::test]
async fn a_panic_is_a_failure_of_this_job_wherever_it_happens() {
    struct Trap;
    impl<'de> Deserialize<'de> for Trap {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            panic!("while decoding")
        }
    }
    let late = one(|job: Job<u32>, _| async move {
        tokio::task::yield_now().await;
        if job.payload < 100 { panic!("after {} letters", job.payload) } else { Ok(()) }
    });
    let early = one(|_: Job<u32>, _| -> std::future::Ready<Result<(), HandlerError>> { panic!("at once") });
    let decoding = one(|_: Job<Trap>, _| async move { Ok(()) });
    for (handlers, text) in [(late, "after 7 letters"), (early, "at once"), (decoding, "while decoding")] {
        let claimed = claimed("7", GRACE).await;
        let failed = failure(claimed.run(&handlers).await);
        assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::System, "panic"));
        assert!(failed.message.contains(text), "{failed:?}");
        assert!(claimed.watch.entry().is_over(), "the panic left the job counted as running");
    }
}

#[tokio::test]
async fn a_handler_that_stops_as_asked_costs_the_job_no_try() {
    let handlers = one(|job: Job<String>, lease: LeaseHandle| async move {
        let reason = lease.cancelled().await;
        assert_eq!((lease.stop_reason(), lease.is_live()), (Some(reason), false));
        match job.payload.as_str() {
            "finish" => Ok(()),
            "user" => Err(HandlerError::user("half_done", "interrupted")),
            _ => Err(HandlerError::stopped()),
        }
    });
    for payload in ["stopped", "user", "finish"] {
        let claimed = claimed(&format!("\"{payload}\""), GRACE).await;
        let (outcome, ()) =
            tokio::join!(claimed.run(&handlers), async { claimed.watch.stop(StopReason::Draining, None) });
        let expected = match payload {
            // It came to its end all the same: that is not thrown away.
            "finish" => WorkOutcome::Completed { exit_code: None, output: None },
            _ => WorkOutcome::Stopped,
        };
        assert_eq!(outcome, expected, "{payload}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_the_stop_is_dropped_after_its_grace() {
    struct Dropped;
    static DROPPED: AtomicBool = AtomicBool::new(false);
    impl Drop for Dropped {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::SeqCst);
        }
    }
    let handlers = one(|_: Job<()>, _| async move {
        let _dropped = Dropped;
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let claimed = claimed("null", GRACE).await;
    let begun = tokio::time::Instant::now();
    let (outcome, ()) =
        tokio::join!(claimed.run(&handlers), async { claimed.watch.stop(StopReason::Canceled, None) });
    assert_eq!(outcome, WorkOutcome::Stopped);
    assert!(DROPPED.load(Ordering::SeqCst) && claimed.watch.entry().is_over());
    assert!(begun.elapsed() >= GRACE - Duration::from_millis(50), "{:?}", begun.elapsed());
}

/// The one named exception of L5: a blocked thread cannot be ended, so the job is not called ended either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_handler_is_not_reported_as_ended_while_it_runs() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let (entered, enter) = tokio::sync::oneshot::channel();
    let entered = Arc::new(std::sync::Mutex::new(Some(entered)));
    let handlers = one(move |_: Job<()>, _| {
        let (released, entered) = (Arc::clone(&released), Arc::clone(&entered));
        async move {
            let entered = entered.lock().expect("no panic while locked").take();
            entered.expect("called once").send(()).expect("the test waits");
            // Blocks the thread, as a handler should not.
            let _ = released.lock().expect("no panic while locked").recv();
            Ok(())
        }
    });
    let claimed = claimed("null", Duration::from_millis(20)).await;
    let mut run = std::pin::pin!(claimed.run(&handlers));
    tokio::select! {
        _ = &mut run => panic!("it ended before it was entered"),
        entered = enter => entered.expect("the handler is entered"),
    }
    claimed.watch.stop(StopReason::Canceled, None);
    let waited = tokio::time::timeout(Duration::from_millis(300), &mut run).await;
    assert!(waited.is_err(), "reported as {waited:?} while its thread was blocked");
    assert!(!claimed.watch.entry().is_over());
    release.send(()).expect("the handler waits");
    assert_eq!(run.await, WorkOutcome::Completed { exit_code: None, output: None });
    assert!(claimed.watch.entry().is_over());
}

#[tokio::test]
async fn dropping_the_run_drops_the_handler() {
    let (held, mut gone) = tokio::sync::mpsc::channel::<()>(1);
    let handlers = one(move |_: Job<()>, _| {
        let held = held.clone();
        async move {
            let _held = held;
            std::future::pending::<Result<(), HandlerError>>().await
        }
    });
    let claimed = claimed("null", GRACE).await;
    let run = tokio::time::timeout(Duration::from_millis(50), claimed.run(&handlers)).await;
    assert!(run.is_err());
    drop(handlers);
    assert_eq!(gone.recv().await, None, "the channel closes once the handler's future is gone");
    claimed.watch.entry().over().await;
}

#[tokio::test]
async fn a_job_for_an_unknown_handler_is_for_another_worker_to_try() {
    use leasehold_actors::ports::WorkRunner as _;
    let probe = HeartbeatProbe::new(&[], None).expect("no settings at all");
    let workloads = Workloads::new(Handlers::default(), probe, Handle::current());
    let claimed = claimed("null", GRACE).await;
    let outcome = workloads.run(Arc::clone(&claimed.grant), claimed.context.clone()).await;
    let failed = failure(outcome);
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::System, "no_such_handler"));
}

#[tokio::test]
async fn results_and_notes_that_are_too_long_are_refused() {
    let handlers = one(|_: Job<()>, lease: LeaseHandle| async move {
        let long = lease.progress(&"x".repeat(5000)).await;
        assert!(matches!(long, Err(ProgressError::TooLong(5002))), "{long:?}");
        Ok("x".repeat(2 * 1024 * 1024))
    });
    let failed = failure(claimed("null", GRACE).await.run(&handlers).await);
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::User, "bad_output"));
}
