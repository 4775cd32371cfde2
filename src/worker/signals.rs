//! SIGTERM and SIGINT: the first drains, a second one more than a second later ends the work at once.

use std::{future::Future, io, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::Instant,
};

/// A signal so soon after the first is its echo: a terminal sends Ctrl-C to the whole process group, and a
/// supervisor passes it on.
const ECHO: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Received {
    Nothing,
    First,
    Second,
}

/// What the process was told by signals. Made once, early: from then on neither signal kills the process.
#[derive(Debug, Clone)]
pub struct StopSignals {
    received: watch::Receiver<Received>,
}

impl StopSignals {
    /// Listens from now on, by a task of the present runtime.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn listen() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (tell, received) = watch::channel(Received::Nothing);
        tokio::spawn(async move {
            let mut first: Option<Instant> = None;
            loop {
                let name = tokio::select! {
                    Some(()) = terminate.recv() => "SIGTERM",
                    Some(()) = interrupt.recv() => "SIGINT",
                    else => return,
                };
                match first {
                    None => {
                        tracing::info!(signal = name, "finishing what runs; send it again to stop at once");
                        first = Some(Instant::now());
                        tell.send_replace(Received::First);
                    }
                    Some(at) if at.elapsed() > ECHO => {
                        tracing::warn!(signal = name, "stopping at once");
                        tell.send_replace(Received::Second);
                    }
                    Some(_) => {}
                }
            }
        });
        Ok(Self { received })
    }

    /// Resolves at the first signal.
    pub fn first(&self) -> impl Future<Output = ()> + Send + use<> {
        self.reached(Received::First)
    }

    /// Resolves at the second one.
    pub fn second(&self) -> impl Future<Output = ()> + Send + use<> {
        self.reached(Received::Second)
    }

    fn reached(&self, what: Received) -> impl Future<Output = ()> + Send + use<> {
        let mut received = self.received.clone();
        async move {
            if received.wait_for(|so_far| *so_far >= what).await.is_err() {
                // The runtime that listened is gone, and this one with it.
                std::future::pending::<()>().await;
            }
        }
    }
}
