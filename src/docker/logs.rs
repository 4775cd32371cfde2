//! A container's output, byte for byte.
//!
//! The live stream is taken *before* the start, so that it holds the first byte, and comes straight from the
//! program's pipes. The engine's own record is read only where there is no live stream (another worker took
//! over, the engine went down meanwhile). The record is the same but for bytes that are no UTF-8: those, and
//! a character that a 16 KiB boundary cuts in two, Docker writes down as replacement characters.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bollard::{
    container::{AttachContainerResults, LogOutput},
    query_parameters::{AttachContainerOptionsBuilder, LogsOptionsBuilder},
};
use futures_util::{StreamExt as _, stream, stream::BoxStream};
use leasehold_actors::{
    domain::ContainerId,
    error::{Applied, EngineError, EngineErrorKind},
    ports::{ContainerState, ContainerStatus, LogChunk, LogStream},
};
use tokio::time::{Instant, sleep, timeout};

use super::{DockerEngine, error, lifecycle::as_seen};

const OPERATION: &str = "logs";
/// A live stream that nobody asks for is let go: unread output would stop the program.
const UNCLAIMED: Duration = Duration::from_secs(60);
/// How long after the end of its output a container may still be reported as running.
const END_LAG: Duration = Duration::from_secs(3);
/// SIGKILL, as an exit code.
const KILLED: i32 = 137;

type Chunks = BoxStream<'static, Result<LogChunk, EngineError>>;

/// Streams that were opened before their container's start and are not yet asked for.
#[derive(Default, Clone)]
pub(super) struct LiveOutput {
    streams: Arc<Mutex<HashMap<ContainerId, AttachContainerResults>>>,
}

impl std::fmt::Debug for LiveOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LiveOutput")
    }
}

impl LiveOutput {
    fn keep(&self, id: &ContainerId, stream: AttachContainerResults) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), stream);
    }

    fn take(&self, id: &ContainerId) -> Option<AttachContainerResults> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    pub(super) fn forget(&self, id: &ContainerId) {
        drop(self.take(id));
    }
}

impl DockerEngine {
    /// Opens the live stream of a container that was created and not started. An engine (or a proxy before
    /// it) that offers none costs nothing but the exactness of the last newline.
    pub(super) async fn listen_before_start(&self, id: &ContainerId) {
        let options = AttachContainerOptionsBuilder::new().stream(true).stdout(true).stderr(true).build();
        let attached = self
            .ask("attach", self.limits().look, |client| async move {
                client.attach_container(id.as_str(), Some(options)).await
            })
            .await;
        match attached {
            Ok(stream) => {
                self.shared.live.keep(id, stream);
                let (live, id) = (self.shared.live.clone(), id.clone());
                tokio::spawn(async move {
                    sleep(UNCLAIMED).await;
                    live.forget(&id);
                });
            }
            Err(error) => {
                tracing::debug!(container = %id, %error, "no live output; the engine's record is read")
            }
        }
    }

    /// Output from the first byte to the end.
    pub(super) fn output(&self, id: &ContainerId) -> Chunks {
        let (source, live) = match self.shared.live.take(id) {
            Some(attached) => (Self::live(attached), true),
            None => (self.record(id), false),
        };
        let follower =
            Follower { engine: self.clone(), id: id.clone(), source, live, given: [0; 2], skip: [0; 2] };
        stream::unfold(Some(follower), |follower| async {
            let mut follower = follower?;
            match follower.next().await {
                Some(Ok(chunk)) => Some((Ok(chunk), Some(follower))),
                Some(Err(error)) => Some((Err(error), None)),
                None => None,
            }
        })
        .boxed()
    }

    fn live(attached: AttachContainerResults) -> Chunks {
        // The writing half stays open as long as the reading one.
        let AttachContainerResults { output, input } = attached;
        output.map(move |item| (item, &input).0).filter_map(|item| async { chunk(item) }).boxed()
    }

    /// The engine's record, followed while the container runs.
    fn record(&self, id: &ContainerId) -> Chunks {
        let (engine, id) = (self.clone(), id.clone());
        stream::once(async move {
            let client = match engine.agreed_client(OPERATION).await {
                Ok(client) => client,
                Err(error) => return stream::iter([Err(error)]).boxed(),
            };
            let options =
                LogsOptionsBuilder::new().follow(true).stdout(true).stderr(true).tail("all").build();
            client.logs(id.as_str(), Some(options)).filter_map(|item| async { chunk(item) }).boxed()
        })
        .flatten()
        .boxed()
    }
}

/// Frames are of standard output or error. Without a terminal anything else is the engine's own report of
/// trouble with its record, which bollard does not know as a frame.
fn chunk(item: Result<LogOutput, bollard::errors::Error>) -> Option<Result<LogChunk, EngineError>> {
    match item {
        Ok(LogOutput::StdOut { message }) => Some(Ok(LogChunk { stream: LogStream::Stdout, data: message })),
        Ok(LogOutput::StdErr { message }) => Some(Ok(LogChunk { stream: LogStream::Stderr, data: message })),
        Ok(LogOutput::StdIn { .. }) => None,
        Ok(LogOutput::Console { message }) => Some(Err(error::engine_error(
            OPERATION,
            EngineErrorKind::Engine,
            Applied::No,
            format!("the engine cannot read its record: {}", printable(&message)),
        ))),
        Err(error) => Some(Err(error::classify(OPERATION, error))),
    }
}

fn printable(message: &[u8]) -> String {
    String::from_utf8_lossy(message).chars().filter(|c| !c.is_control()).collect()
}

fn index(stream: LogStream) -> usize {
    usize::from(stream == LogStream::Stderr)
}

/// One reader of a container's output, over a broken live stream too.
struct Follower {
    engine: DockerEngine,
    id: ContainerId,
    source: Chunks,
    live: bool,
    /// Bytes of the two streams that were handed out.
    given: [usize; 2],
    /// Bytes of the record that the live stream has handed out already.
    skip: [usize; 2],
}

impl Follower {
    async fn next(&mut self) -> Option<Result<LogChunk, EngineError>> {
        loop {
            match self.source.next().await {
                Some(Ok(chunk)) => {
                    if let Some(chunk) = self.fresh(chunk) {
                        self.given[index(chunk.stream)] += chunk.data.len();
                        return Some(Ok(chunk));
                    }
                }
                Some(Err(error)) if error.kind == EngineErrorKind::NoSuchContainer => {
                    let seen = self.engine.clone().look_at(self.id.clone().as_str()).await;
                    return Some(Err(as_seen(error, &seen)));
                }
                Some(Err(error)) => return Some(Err(error)),
                None => match ended(&self.engine.clone(), &self.id.clone(), self.live).await {
                    Ok(End::Complete) => return None,
                    Ok(End::ReadRecord) => {
                        self.live = false;
                        self.skip = self.given;
                        self.source = self.engine.record(&self.id);
                    }
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }

    /// The part of a chunk that was not handed out before.
    fn fresh(&mut self, chunk: LogChunk) -> Option<LogChunk> {
        let i = index(chunk.stream);
        let known = self.skip[i].min(chunk.data.len());
        self.skip[i] -= known;
        let data = chunk.data.slice(known..);
        (!data.is_empty()).then_some(LogChunk { stream: chunk.stream, data })
    }
}

/// The stream is over: because the container is, or because the connection is? Asked on a new connection,
/// so an engine that went down is noticed.
async fn ended(engine: &DockerEngine, id: &ContainerId, live: bool) -> Result<End, EngineError> {
    let lag = Instant::now() + END_LAG;
    loop {
        match timeout(END_LAG * 2, engine.look_at(id.as_str())).await {
            Ok(Ok(None)) => return Ok(End::Complete),
            Ok(Ok(Some(status))) => match end_of(&status, live) {
                Some(end) => return Ok(end),
                None if Instant::now() < lag => sleep(Duration::from_millis(50)).await,
                None => return Err(broken("the stream broke while the container runs")),
            },
            Ok(Err(error)) => {
                let words = format!("the stream broke, and the engine does not answer: {}", error.message);
                return Err(broken(&words));
            }
            Err(_) => return Err(broken("the stream broke, and the engine does not answer")),
        }
    }
}

enum End {
    Complete,
    ReadRecord,
}

/// None while the container is reported as running.
fn end_of(status: &ContainerStatus, live: bool) -> Option<End> {
    match status.state {
        ContainerState::Running { .. } => None,
        // A kill may have come with the engine's own end: whatever it recorded beyond the live stream counts.
        ContainerState::Exited { code: KILLED, .. } if live => Some(End::ReadRecord),
        ContainerState::Exited { .. } | ContainerState::Created | ContainerState::Dead => Some(End::Complete),
    }
}

fn broken(message: &str) -> EngineError {
    error::engine_error(OPERATION, EngineErrorKind::Unreachable, Applied::Maybe, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(data: &[u8]) -> LogChunk {
        LogChunk { stream: LogStream::Stdout, data: data.to_vec().into() }
    }

    #[test]
    fn the_record_goes_on_where_the_live_stream_broke_off() {
        for (live, record, rest) in [
            (&b"a\nwor"[..], &[&b"a\n"[..], b"world\n", b"x\n"][..], &b"ld\nx\n"[..]),
            (b"a\n", &[b"a\n"], b""),
            (b"", &[b"a\n"], b"a\n"),
        ] {
            let mut follower = Follower {
                engine: DockerEngine::connect("unix:///nowhere.sock", None).expect("an endpoint"),
                id: ContainerId::new("c").expect("an id"),
                source: stream::empty().boxed(),
                live: false,
                given: [0; 2],
                skip: [live.len(), 0],
            };
            let got: Vec<u8> =
                record.iter().filter_map(|entry| follower.fresh(out(entry))).flat_map(|c| c.data).collect();
            assert_eq!(got, rest);
            let other = LogChunk { stream: LogStream::Stderr, data: b"e\n".to_vec().into() };
            assert_eq!(follower.fresh(other.clone()), Some(other));
        }
    }
}
