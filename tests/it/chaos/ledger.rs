//! The ledger: where workloads write that they start, go on and end, outside of everything that is tested and
//! without any key that could hide a double. A listener on loopback with a thread of its own; each execution
//! holds one connection, whose closing tells when it was really gone.
//!
//! ```text
//! start handler|container PID JOB EPOCH SECONDS      SECONDS: CLOCK_BOOTTIME, as in /proc/uptime
//! tick SECONDS
//! end SECONDS
//! ```
//!
//! The same thread answers HEARTBEAT probes: `GET /STATUS/MILLISECONDS`.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::history::{Micros, Run, SECOND, Writer};
use crate::support::eventually::pass;

/// The machine's real wall clock.
pub fn now() -> Micros {
    micros(ClockId::Realtime)
}

fn micros(clock: ClockId) -> Micros {
    let time = clock_gettime(clock);
    time.tv_sec * SECOND + time.tv_nsec / 1000
}

/// Listens for as long as the process lives.
#[derive(Debug, Clone)]
pub struct Ledger {
    pub address: SocketAddr,
    pub probes: SocketAddr,
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    runs: Vec<Run>,
    /// First start of each job.
    begun: HashMap<i64, Micros>,
    probes: usize,
    unreadable: Vec<String>,
}

impl Ledger {
    pub fn open() -> Self {
        let book: Arc<Mutex<Book>> = Arc::default();
        let (tell, told) = std::sync::mpsc::channel();
        let shared = Arc::clone(&book);
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let entries = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let probes = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send((entries.local_addr().unwrap(), probes.local_addr().unwrap())).unwrap();
                loop {
                    tokio::select! {
                        Ok((writer, _)) = entries.accept() => { tokio::spawn(record(writer, Arc::clone(&shared))); }
                        Ok((prober, _)) = probes.accept() => { tokio::spawn(answer(prober, Arc::clone(&shared))); }
                        else => {}
                    }
                }
            });
        };
        std::thread::Builder::new().name("ledger".to_owned()).spawn(serve).unwrap();
        let (address, probes) = told.recv().unwrap();
        Self { address, probes, book }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("nothing panics over the ledger")
    }

    /// Whether work on a job has ever begun.
    pub fn has_begun(&self, job: i64) -> bool {
        self.book().begun.contains_key(&job)
    }

    pub fn probes_answered(&self) -> usize {
        self.book().probes
    }

    /// Everything that was written.
    pub fn runs(&self) -> Vec<Run> {
        let book = self.book();
        assert!(book.unreadable.is_empty(), "not written by our workloads: {:?}", book.unreadable);
        book.runs.clone()
    }
}

async fn record(writer: TcpStream, book: Arc<Mutex<Book>>) {
    let mut lines = BufReader::new(writer).lines();
    let mut run = None;
    while let Ok(Some(line)) = lines.next_line().await {
        let mut book = book.lock().expect("nothing panics over the ledger");
        if enter(&mut book, &mut run, &line).is_none() {
            book.unreadable.push(line);
        }
    }
    if let Some(run) = run {
        let mut book = book.lock().expect("nothing panics over the ledger");
        book.runs[run].closed = Some(now());
    }
}

fn enter(book: &mut Book, run: &mut Option<usize>, line: &str) -> Option<()> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // The difference of the two clocks is read each time: nobody promises that it stays.
    let wall = |seconds: &str| -> Option<Micros> {
        let (whole, part) = seconds.split_once('.')?;
        let part = format!("{part:0<6}");
        let booted = whole.parse::<Micros>().ok()? * SECOND + part.get(..6)?.parse::<Micros>().ok()?;
        Some(booted + micros(ClockId::Realtime) - micros(ClockId::Boottime))
    };
    match (words.as_slice(), *run) {
        (["start", kind, pid, job, epoch, at], None) => {
            let writer = match *kind {
                "handler" => Writer::Handler { pid: pid.parse().ok()? },
                "container" => Writer::Container,
                _ => return None,
            };
            let (job, started) = (job.parse().ok()?, wall(at)?);
            *run = Some(book.runs.len());
            book.begun.entry(job).or_insert(started);
            let epoch = epoch.parse().ok()?;
            book.runs.push(Run { job, epoch, writer, started, ticks: Vec::new(), ended: None, closed: None });
        }
        (["tick", at], Some(run)) => book.runs[run].ticks.push(wall(at)?),
        (["end", at], Some(run)) => book.runs[run].ended = Some(wall(at)?),
        // The last line of a container that was killed in the middle of it.
        (_, Some(_)) if !line.contains('\n') && words.len() < 2 => {}
        _ => return None,
    }
    Some(())
}

/// `GET /STATUS/MILLISECONDS HTTP/1.1`
async fn answer(prober: TcpStream, book: Arc<Mutex<Book>>) -> Option<()> {
    let mut stream = BufReader::new(prober);
    let mut request = String::new();
    stream.read_line(&mut request).await.ok()?;
    loop {
        let mut header = String::new();
        if stream.read_line(&mut header).await.ok()? <= 2 {
            break;
        }
    }
    let path = request.split(' ').nth(1)?.to_owned();
    let mut parts = path.trim_start_matches('/').split('/');
    let (status, delay) = (parts.next()?, parts.next()?.parse().ok()?);
    pass(Duration::from_millis(delay)).await;
    let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    stream.get_mut().write_all(text.as_bytes()).await.ok()?;
    book.lock().expect("nothing panics over the ledger").probes += 1;
    Some(())
}
