//! What a program prints, on its way into the output of its job.
//!
//! Whoever reads the program's pipes hands every piece on. A program that prints faster than its output is stored is held
//! up at its own pipe, so memory stays flat; once it has ended, or must end, nothing is held up any more. Stored is what the
//! pipe gave, byte by byte, under the token of the lease: once that is not live, nothing is stored any more. A replay
//! calls no op, and so stores nothing.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use leasehold_actors::{
    domain::TaskKey,
    ports::{LogBatch, LogStream},
    runtime_node_actor::{
        logs::{Journal, Stored, append},
        task::{HeldBack, Redact},
    },
    work::LeaseContext,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// The most that is read of a running program and not stored, in bytes.
const ROOM: usize = 256 * 1024;
/// The same, beyond that, of one that has ended or must end.
const LAST_ROOM: usize = 1024 * 1024;
/// Output is stored when this much has gathered …
const BATCH_BYTES: usize = 128 * 1024;
/// … or when its first byte is this old.
const BATCH_AGE: Duration = Duration::from_millis(200);
/// Beyond this many pieces at once, the two streams are no longer kept in their exact order between them.
const BATCHES: usize = 32;
/// The longest that one call to the store may take before it is made again.
const STORE_CALL: Duration = Duration::from_secs(10);

/// Where the output of a program goes.
pub(super) struct Destination {
    pub(super) lease: LeaseContext,
    pub(super) task: TaskKey,
    /// The most bytes that are stored.
    pub(super) quota: u64,
    /// What must not be shown.
    pub(super) redact: Option<Redact>,
}

/// The end where pieces come in. One for each stream.
pub(super) struct Printed {
    stream: LogStream,
    to: Option<To>,
}

#[derive(Clone)]
struct To {
    pieces: mpsc::UnboundedSender<Piece>,
    room: Arc<Semaphore>,
    /// The program has ended, or must end.
    over: CancellationToken,
    /// Taken in without room.
    beyond: usize,
}

struct Piece {
    stream: LogStream,
    /// None: they were not kept.
    data: Option<Bytes>,
    length: usize,
    room: Option<OwnedSemaphorePermit>,
}

impl Printed {
    /// Hands a piece on, as soon as there is room for it.
    pub(super) async fn push(&mut self, data: &[u8]) {
        let Some(to) = &mut self.to else { return };
        let wanted = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let room = tokio::select! {
            biased;
            room = Arc::clone(&to.room).acquire_many_owned(wanted) => room.ok(),
            () = to.over.cancelled() => None,
        };
        let keep = room.is_some() || to.beyond + data.len() <= LAST_ROOM;
        if room.is_none() {
            to.beyond += data.len();
        }
        let length = data.len();
        let data = keep.then(|| Bytes::copy_from_slice(data));
        // Where nobody takes it any more, the lease is over.
        let _ = to.pieces.send(Piece { stream: self.stream, data, length, room });
    }
}

/// The storing of what one program prints. Dropped, it stops.
pub(super) struct Storing {
    over: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Storing {
    /// Nothing holds the program up any more.
    pub(super) fn over(&self) {
        self.over.cancel();
    }

    /// Waits until all is stored, which comes when both ends are dropped; for so long.
    pub(super) async fn finish(mut self, limit: Duration) {
        if let Some(task) = &mut self.task
            && tokio::time::timeout(limit, task).await.is_err()
        {
            tracing::warn!("the end of a program's output was not stored in time");
        }
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Begins to store, on the caller's runtime: the ends for standard output and standard error.
pub(super) fn begin(destination: Option<Destination>) -> (Printed, Printed, Storing) {
    let over = CancellationToken::new();
    let Some(destination) = destination else {
        let none = |stream| Printed { stream, to: None };
        return (none(LogStream::Stdout), none(LogStream::Stderr), Storing { over, task: None });
    };
    let (pieces, taken) = mpsc::unbounded_channel();
    let to = To { pieces, room: Arc::new(Semaphore::new(ROOM)), over: over.clone(), beyond: 0 };
    let end = |stream| Printed { stream, to: Some(to.clone()) };
    let (out, err) = (end(LogStream::Stdout), end(LogStream::Stderr));
    let task = tokio::spawn(Log::new(destination).run(taken));
    (out, err, Storing { over, task: Some(task) })
}

/// The end where pieces are stored.
struct Log {
    lease: LeaseContext,
    task: TaskKey,
    redact: Option<Redact>,
    journal: Journal,
    quota: u64,
    /// Bytes that may still be stored.
    left: u64,
    /// Of standard output and standard error: how far they have been read, …
    read: [u64; 2],
    /// … the end that may be the beginning of something that is not to be shown, …
    held_back: [HeldBack; 2],
    /// … and what was not kept.
    dropped: [u64; 2],
    batches: Vec<(LogStream, u64, BytesMut)>,
    gathered: usize,
    room: Vec<OwnedSemaphorePermit>,
    cut_said: bool,
    storing: bool,
}

impl Log {
    fn new(destination: Destination) -> Self {
        let Destination { lease, task, quota, redact } = destination;
        Self {
            journal: Journal::new(lease.clone(), STORE_CALL, 0, Some(task.clone())),
            lease,
            task,
            redact,
            quota,
            left: quota,
            read: [0; 2],
            held_back: Default::default(),
            dropped: [0; 2],
            batches: Vec::new(),
            gathered: 0,
            room: Vec::new(),
            cut_said: false,
            storing: true,
        }
    }

    async fn run(mut self, mut pieces: mpsc::UnboundedReceiver<Piece>) {
        while let Some(piece) = pieces.recv().await {
            self.take(piece);
            let due = Instant::now() + BATCH_AGE;
            while self.gathered < BATCH_BYTES {
                match timeout_at(due, pieces.recv()).await {
                    Ok(Some(piece)) => self.take(piece),
                    Ok(None) | Err(_) => break,
                }
            }
            if self.flush().await == Stored::Fenced {
                return;
            }
        }
        for (index, stream) in [LogStream::Stdout, LogStream::Stderr].into_iter().enumerate() {
            self.let_go(index, stream);
        }
        if self.flush().await == Stored::Fenced {
            return;
        }
        let [out, err] = self.dropped;
        if out + err > 0 {
            let dropped = out + err;
            let text = format!("{dropped} bytes of output were dropped (stdout {out}, stderr {err})");
            self.journal.remark(&text).await;
        }
    }

    fn take(&mut self, piece: Piece) {
        let index = usize::from(piece.stream == LogStream::Stderr);
        self.gathered += piece.length;
        self.room.extend(piece.room);
        let Some(data) = &piece.data else {
            // What follows is no continuation of what is held back.
            self.let_go(index, piece.stream);
            self.read[index] += piece.length as u64;
            self.dropped[index] += piece.length as u64;
            return;
        };
        let first_byte = self.read[index] - self.held_back[index].len() as u64;
        self.read[index] += piece.length as u64;
        let shown = match &self.redact {
            Some(redact) => self.held_back[index].take(data, redact),
            None => data.clone(),
        };
        self.keep(piece.stream, first_byte, &shown);
    }

    /// Keeps what was held back: it is not the beginning of anything.
    fn let_go(&mut self, index: usize, stream: LogStream) {
        let Some(redact) = &self.redact else { return };
        let first_byte = self.read[index] - self.held_back[index].len() as u64;
        let rest = self.held_back[index].rest(redact);
        self.keep(stream, first_byte, &rest);
    }

    /// Keeps what there is room for.
    fn keep(&mut self, stream: LogStream, first_byte: u64, data: &[u8]) {
        let index = usize::from(stream == LogStream::Stderr);
        let kept =
            if self.storing { usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len()) } else { 0 };
        self.left -= kept as u64;
        self.dropped[index] += (data.len() - kept) as u64;
        if kept == 0 {
            return;
        }
        let (many, last) = (self.batches.len() >= BATCHES, self.batches.len().saturating_sub(1));
        let fits = |(at, (of, first, batch)): &(usize, &mut (LogStream, u64, BytesMut))| {
            *of == stream && (many || *at == last) && *first + batch.len() as u64 == first_byte
        };
        match self.batches.iter_mut().enumerate().rev().find(fits) {
            Some((_, (_, _, batch))) => batch.extend_from_slice(&data[..kept]),
            None => self.batches.push((stream, first_byte, BytesMut::from(&data[..kept]))),
        }
    }

    async fn flush(&mut self) -> Stored {
        let task = &self.task;
        let batches: Vec<LogBatch> = std::mem::take(&mut self.batches)
            .into_iter()
            .map(|(stream, first_byte, data)| LogBatch {
                task: Some(task.clone()),
                stream,
                first_byte,
                data: data.freeze(),
            })
            .collect();
        self.gathered = 0;
        if !batches.is_empty() {
            // As long as the lease lives; at the end, whoever waits for it decides.
            match append(&self.lease, STORE_CALL, &batches, || false).await {
                Stored::Yes => {}
                Stored::Fenced => return Stored::Fenced,
                // From here on output is only counted.
                Stored::GivenUp => {
                    self.storing = false;
                    for batch in &batches {
                        self.dropped[usize::from(batch.stream == LogStream::Stderr)] +=
                            batch.data.len() as u64;
                    }
                }
            }
        }
        self.room.clear();
        if self.left == 0 && !self.cut_said && self.storing && self.dropped != [0; 2] {
            self.cut_said = true;
            let quota = self.quota;
            let text = format!("the limit of {quota} bytes of output is reached; what follows is dropped");
            self.journal.remark(&text).await;
        }
        Stored::Yes
    }
}
