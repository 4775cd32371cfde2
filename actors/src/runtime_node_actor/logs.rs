//! The log pump: both streams whole, byte by byte, into the store in batches.
//!
//! It reads no further than what it can store, so a container that prints faster than the store takes is held
//! up at its own pipe, and memory stays flat. A stream that breaks is opened again and read from its first
//! byte; what was taken before is skipped by counting. Over the quota output is counted and dropped, with a
//! remark where it was cut and another at the end.

use std::{fmt, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    run::{FIRST_WAIT, LAST_WAIT, Run},
    task::HeldBack,
};
use crate::{
    domain::{ContainerId, ContainerSpec, TaskKey},
    error::Applied,
    ports::{LogAppend, LogBatch, LogChunk, LogStream},
    work::{LeaseCallError, LeaseContext},
};

/// Beyond this many pieces in one batch, output of the two streams is no longer kept in its exact order
/// between them, only within each.
const PIECES: usize = 32;

/// Writes Leasehold's own remarks among a job's output.
pub struct Journal {
    lease: LeaseContext,
    store_call: Duration,
    task: Option<TaskKey>,
    /// How many bytes of the remarks' stream are written.
    written: Mutex<u64>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("task", &self.task).finish_non_exhaustive()
    }
}

impl Journal {
    /// `written` bytes of it are stored already.
    #[must_use]
    pub fn new(lease: LeaseContext, store_call: Duration, written: u64, task: Option<TaskKey>) -> Self {
        Self { lease, store_call, task, written: Mutex::new(written) }
    }

    /// Writes one line. A remark that the store does not take is only logged: the run goes on.
    pub async fn remark(&self, text: &str) {
        let data = Bytes::from(format!("{text}\n"));
        let mut written = self.written.lock().await;
        let (task, stream) = (self.task.clone(), LogStream::System);
        let batch = LogBatch { task, stream, first_byte: *written, data: data.clone() };
        let give_up = Instant::now() + self.store_call;
        let stored = append(&self.lease, self.store_call, &[batch], || Instant::now() >= give_up).await;
        if stored == Stored::Yes {
            *written += data.len() as u64;
        } else {
            tracing::warn!(job = %self.lease.authority().job, remark = text, "a remark was not stored");
        }
    }
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// It is stored, now or before.
    Yes,
    /// The lease is over: nothing of this grant is stored any more.
    Fenced,
    /// The store refuses this batch for good, or did not answer in time.
    GivenUp,
}

/// Appends, and repeats what may not have happened: a batch that is stored already is not stored twice. `enough` is asked
/// after each call that failed; `call` is the longest that one may take.
pub async fn append(
    lease: &LeaseContext,
    call: Duration,
    batches: &[LogBatch],
    mut enough: impl FnMut() -> bool,
) -> Stored {
    let job = lease.authority().job;
    let mut pause = FIRST_WAIT;
    loop {
        match timeout(call, lease.append_logs(batches)).await {
            Ok(Ok(LogAppend::Stored)) => return Stored::Yes,
            Ok(Ok(LogAppend::NotLive) | Err(LeaseCallError::Lost)) => return Stored::Fenced,
            Ok(Err(LeaseCallError::Store(error))) => {
                if error.applied == Applied::No && !error.is_retryable() {
                    tracing::error!(%job, %error, "output was refused");
                    return Stored::GivenUp;
                }
                tracing::debug!(%job, %error, "output not stored, trying again");
            }
            Err(_) => tracing::debug!(%job, "no answer to an append, trying again"),
        }
        if enough() {
            return Stored::GivenUp;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_WAIT);
    }
}

/// A piece of one stream that is not stored yet.
struct Piece {
    stream: LogStream,
    first_byte: u64,
    data: BytesMut,
}

/// Reads one container's output to its end.
pub(super) struct LogPump<'a> {
    run: &'a Run,
    id: &'a ContainerId,
    /// Bytes read of each stream, dropped ones included, and those that an earlier holder has stored.
    taken: [u64; 2],
    /// How many of each stream an earlier holder has stored: they are read, and not stored again.
    stored: [u64; 2],
    pieces: Vec<Piece>,
    /// The end of each stream that may be the beginning of something that is not to be shown.
    held_back: [HeldBack; 2],
    /// When the first of the pieces was read.
    since: Option<Instant>,
    /// Bytes that may still be stored.
    room: u64,
    dropped: [u64; 2],
    storing: bool,
    /// When the last new byte was read.
    progress: Instant,
    /// The container is known to have ended, or is not watched any more.
    over: watch::Receiver<bool>,
    /// When that was noticed here.
    over_at: Option<Instant>,
    /// The cut by the quota was remarked.
    cut_said: bool,
}

/// Why a stream is read no further.
#[derive(Debug, PartialEq, Eq)]
enum Stream {
    /// It came to its end, and so did the container.
    Complete,
    /// It broke off.
    Broken,
    /// There is no time left to read on.
    TimeUp,
    /// The lease is over.
    Fenced,
}

enum Event {
    Chunk(LogChunk),
    StreamEnded,
    StreamBroke(String),
    FlushDue,
    ContainerOver,
    TimeUp,
}

impl<'a> LogPump<'a> {
    /// `over` turns true when the container is known to have ended, or not to be watched any more. What an earlier
    /// holder has stored is skipped, and counts for the quota.
    pub(super) fn new(run: &'a Run, id: &'a ContainerId, over: watch::Receiver<bool>) -> Self {
        let quota = run.plan.spec.log_quota_bytes.unwrap_or(ContainerSpec::DEFAULT_LOG_QUOTA_BYTES);
        let stored = run.stored.stdout + run.stored.stderr;
        let room = u64::try_from(quota).unwrap_or(0).saturating_sub(stored);
        Self {
            run,
            id,
            taken: [0; 2],
            stored: [run.stored.stdout, run.stored.stderr],
            pieces: Vec::new(),
            held_back: Default::default(),
            since: None,
            room,
            dropped: [0; 2],
            storing: true,
            progress: Instant::now(),
            over,
            over_at: None,
            // Whoever reached the quota has said so.
            cut_said: room == 0 && stored > 0,
        }
    }

    /// Reads and stores until the container is over and its output at an end.
    pub(super) async fn run(mut self) {
        let mut pause = FIRST_WAIT;
        let complete = loop {
            let before = self.progress;
            match self.read_stream().await {
                Stream::Fenced => return,
                Stream::Complete => break true,
                Stream::TimeUp => break false,
                Stream::Broken => {
                    pause = if self.progress > before { FIRST_WAIT } else { (pause * 2).min(LAST_WAIT) };
                    // A stream that breaks at once leaves no time to notice this beside it.
                    self.notice_the_end();
                    if self.tail_is_over() {
                        break false;
                    }
                    sleep(pause).await;
                }
            }
        };
        self.let_go();
        if let Some(task) = &self.run.task {
            task.output_is_over(complete);
        }
        if self.flush().await == Stored::Fenced {
            return;
        }
        let dropped: u64 = self.dropped.iter().sum();
        if dropped > 0 {
            let [out, err] = self.dropped;
            let text = format!("{dropped} bytes of output were dropped (stdout {out}, stderr {err})");
            self.run.journal.remark(&text).await;
        }
        if !complete {
            tracing::warn!(container = %self.run.plan.name, "the rest of the output could not be read");
            self.run.journal.remark("the rest of the output could not be read").await;
        }
    }

    async fn read_stream(&mut self) -> Stream {
        let mut stream = self.run.engine().logs(self.id);
        let mut skip = self.taken;
        loop {
            let flush_due = self.since.map(|since| since + self.run.limits().batch_age);
            let tail_due = self.tail_due();
            let event = tokio::select! {
                biased;
                () = self.run.out_of_time() => Event::TimeUp,
                item = stream.next() => match item {
                    Some(Ok(chunk)) => Event::Chunk(chunk),
                    Some(Err(error)) => Event::StreamBroke(error.to_string()),
                    None => Event::StreamEnded,
                },
                () = at(flush_due) => Event::FlushDue,
                () = at(tail_due) => Event::TimeUp,
                _ = self.over.wait_for(|over| *over), if self.over_at.is_none() => Event::ContainerOver,
            };
            let full = match event {
                Event::Chunk(chunk) => self.take(chunk, &mut skip),
                Event::FlushDue => true,
                Event::ContainerOver => {
                    self.notice_the_end();
                    false
                }
                Event::TimeUp => return Stream::TimeUp,
                Event::StreamEnded => return self.ended().await,
                Event::StreamBroke(error) => {
                    tracing::debug!(container = %self.run.plan.name, error, "the output broke off");
                    return Stream::Broken;
                }
            };
            if full {
                if self.flush().await == Stored::Fenced {
                    return Stream::Fenced;
                }
                // Fast output must not keep this thread from its other tasks.
                tokio::task::yield_now().await;
            }
        }
    }

    /// The stream ended in good order. It is the end of the output if the container is over, too.
    async fn ended(&mut self) -> Stream {
        if self.flush().await == Stored::Fenced {
            return Stream::Fenced;
        }
        if timeout(LAST_WAIT, self.over.wait_for(|over| *over)).await.is_ok() {
            return Stream::Complete;
        }
        Stream::Broken
    }

    fn notice_the_end(&mut self) {
        if *self.over.borrow() {
            self.over_at.get_or_insert_with(Instant::now);
        }
    }

    /// When the rest of the output has been waited for long enough.
    fn tail_due(&self) -> Option<Instant> {
        self.over_at.map(|over| over.max(self.progress) + self.run.limits().log_tail)
    }

    fn tail_is_over(&self) -> bool {
        self.tail_due().is_some_and(|due| due <= Instant::now())
    }

    /// Takes what is new in a chunk; true when it is time to store.
    fn take(&mut self, chunk: LogChunk, skip: &mut [u64; 2]) -> bool {
        let index = usize::from(chunk.stream == LogStream::Stderr);
        let mut data = chunk.data;
        let known = usize::try_from(skip[index]).unwrap_or(usize::MAX).min(data.len());
        skip[index] -= known as u64;
        data = data.slice(known..);
        if data.is_empty() {
            return false;
        }
        self.progress = Instant::now();
        let mut first_byte = self.taken[index];
        self.taken[index] += data.len() as u64;
        if let Some(task) = &self.run.task {
            task.hears(chunk.stream, &data);
            if let Some(redact) = task.redact() {
                let held = &mut self.held_back[index];
                first_byte -= held.len() as u64;
                data = held.take(&data, redact);
            }
        }
        self.account(chunk.stream, first_byte, &data);
        let waiting: usize = self.pieces.iter().map(|piece| piece.data.len()).sum();
        let old = self.since.is_some_and(|since| since.elapsed() >= self.run.limits().batch_age);
        waiting >= self.run.limits().batch_bytes || old
    }

    /// What was held back turned out to be nothing special.
    fn let_go(&mut self) {
        for (index, stream) in [LogStream::Stdout, LogStream::Stderr].into_iter().enumerate() {
            let held = &mut self.held_back[index];
            let Some(redact) = self.run.task.as_ref().and_then(|task| task.redact()) else { continue };
            let first_byte = self.taken[index] - held.len() as u64;
            let data = held.rest(redact);
            self.account(stream, first_byte, &data);
        }
    }

    /// Keeps what there is room for.
    fn account(&mut self, stream: LogStream, mut first_byte: u64, mut data: &[u8]) {
        let index = usize::from(stream == LogStream::Stderr);
        let old = self.stored[index].saturating_sub(first_byte);
        let old = usize::try_from(old).unwrap_or(usize::MAX).min(data.len());
        (first_byte, data) = (first_byte + old as u64, &data[old..]);
        let kept = usize::try_from(self.room).unwrap_or(usize::MAX).min(data.len());
        self.room -= kept as u64;
        self.dropped[index] += (data.len() - kept) as u64;
        if kept > 0 && self.storing {
            self.keep(stream, first_byte, &data[..kept]);
        }
    }

    fn keep(&mut self, stream: LogStream, first_byte: u64, data: &[u8]) {
        self.since.get_or_insert_with(Instant::now);
        let many = self.pieces.len() >= PIECES;
        let last = self.pieces.len().saturating_sub(1);
        let same = |(at, piece): &(usize, &mut Piece)| piece.stream == stream && (many || *at == last);
        match self.pieces.iter_mut().enumerate().rev().find(same) {
            Some((_, piece)) => piece.data.extend_from_slice(data),
            None => self.pieces.push(Piece { stream, first_byte, data: BytesMut::from(data) }),
        }
    }

    /// Stores what was read. While this waits nothing is read: that is the back-pressure.
    async fn flush(&mut self) -> Stored {
        self.since = None;
        let task = self.run.task.as_ref().map(|task| &task.key);
        let batches: Vec<LogBatch> = std::mem::take(&mut self.pieces)
            .into_iter()
            .map(|piece| LogBatch {
                task: task.cloned(),
                stream: piece.stream,
                first_byte: piece.first_byte,
                data: piece.data.freeze(),
            })
            .collect();
        if !batches.is_empty() {
            let limits = self.run.limits();
            let mut over_at = self.over_at;
            let enough = || {
                if *self.over.borrow() {
                    over_at.get_or_insert_with(Instant::now);
                }
                over_at.is_some_and(|over| over.elapsed() >= limits.log_tail)
            };
            match append(&self.run.lease, limits.store_call, &batches, enough).await {
                Stored::Yes => {}
                Stored::Fenced => return Stored::Fenced,
                Stored::GivenUp => self.give_up(&batches),
            }
        }
        self.mark_the_cut().await;
        Stored::Yes
    }

    /// From here on output is only read, so that the program is not held up, and counted as dropped.
    fn give_up(&mut self, batches: &[LogBatch]) {
        self.storing = false;
        self.room = 0;
        for batch in batches {
            self.dropped[usize::from(batch.stream == LogStream::Stderr)] += batch.data.len() as u64;
        }
    }

    /// Says where the quota cut the output, right behind what was kept.
    async fn mark_the_cut(&mut self) {
        let dropped: u64 = self.dropped.iter().sum();
        if dropped == 0 || self.cut_said || !self.storing {
            return;
        }
        self.cut_said = true;
        let quota = self.quota();
        let text = format!("the limit of {quota} bytes of output is reached; what follows is dropped");
        self.run.journal.remark(&text).await;
    }

    fn quota(&self) -> i64 {
        self.run.plan.spec.log_quota_bytes.unwrap_or(ContainerSpec::DEFAULT_LOG_QUOTA_BYTES)
    }
}

/// That instant; never, if there is none.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
