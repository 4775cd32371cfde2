//! A wire before a server (PostgreSQL over TCP, a Docker engine's socket) that does to connections what networks
//! do, and counts what it did it to.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

use crate::support::{eventually::pass, proxy::executes};

/// Where a wire leads.
#[derive(Debug, Clone)]
pub enum Target {
    Postgres(String),
    Docker(PathBuf),
}

/// What a wire does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passing {
    All,
    /// Held up on the way to the server, or back; delivered once the wire is mended, as TCP would.
    NoneThere,
    NoneBack,
    /// Gone for good in both directions, and the connections with it once the wire is mended.
    Nothing,
}

/// The kinds of cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cut {
    There,
    Back,
    BlackHole,
    Reset,
    Swallow,
}

impl Cut {
    pub const ALL: [Self; 5] = [Self::There, Self::Back, Self::BlackHole, Self::Reset, Self::Swallow];

    pub fn name(self) -> &'static str {
        match self {
            Self::There => "cut towards the server",
            Self::Back => "cut on the way back",
            Self::BlackHole => "black hole",
            Self::Reset => "reset",
            Self::Swallow => "reply swallowed",
        }
    }
}

/// Listens on loopback until dropped.
#[derive(Debug)]
pub struct Wire {
    pub port: u16,
    shared: Arc<Shared>,
    /// One cut at a time.
    playing: tokio::sync::Mutex<()>,
    accepting: tokio::task::AbortHandle,
}

#[derive(Debug)]
struct Shared {
    target: Target,
    passing: watch::Sender<Passing>,
    /// Rises to reset every connection that exists.
    resets: watch::Sender<u64>,
    /// Replies that are still to be swallowed.
    swallow: AtomicI64,
    /// Requests or replies that a fault held up, lost or cut off.
    affected: AtomicU64,
    /// Connections with a request that was not answered yet.
    waiting: AtomicI64,
    /// Ids of containers that requests named.
    named: Mutex<HashSet<String>>,
}

impl Wire {
    pub async fn before(target: Target) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target,
            passing: watch::Sender::new(Passing::All),
            resets: watch::Sender::new(0),
            swallow: AtomicI64::new(0),
            affected: AtomicU64::new(0),
            waiting: AtomicI64::new(0),
            named: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Self { port, shared, playing: tokio::sync::Mutex::default(), accepting }
    }

    /// Plays one cut and says how many requests or replies it met.
    pub async fn play(&self, cut: Cut, length: Duration) -> u64 {
        let _alone = self.playing.lock().await;
        let shared = &self.shared;
        shared.affected.store(0, SeqCst);
        match cut {
            Cut::There | Cut::Back | Cut::BlackHole => {
                let passing = match cut {
                    Cut::There => Passing::NoneThere,
                    Cut::Back => Passing::NoneBack,
                    _ => Passing::Nothing,
                };
                shared.passing.send_replace(passing);
                pass(length).await;
                shared.passing.send_replace(Passing::All);
                if cut == Cut::BlackHole {
                    self.reset();
                }
            }
            Cut::Reset => {
                // In the middle of a call, if there is one within a few seconds.
                let mut waiting = 0;
                for _ in 0..3000 {
                    waiting = shared.waiting.load(SeqCst).max(0);
                    if waiting > 0 {
                        break;
                    }
                    pass(Duration::from_millis(1)).await;
                }
                self.reset();
                shared.affected.store(waiting.unsigned_abs(), SeqCst);
            }
            Cut::Swallow => {
                shared.swallow.store(1, SeqCst);
                for _ in 0..300 {
                    if shared.affected.load(SeqCst) > 0 {
                        break;
                    }
                    pass(Duration::from_millis(10)).await;
                }
                shared.swallow.store(0, SeqCst);
            }
        }
        shared.affected.load(SeqCst)
    }

    fn reset(&self) {
        self.shared.resets.send_modify(|resets| *resets += 1);
    }

    pub fn named(&self) -> Vec<String> {
        self.shared.named.lock().unwrap().iter().cloned().collect()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // Out of descriptors, for a moment: the next connection may do.
        let Ok((client, _)) = listener.accept().await else { continue };
        let _ = client.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            match &shared.target {
                Target::Postgres(address) => {
                    let Ok(server) = TcpStream::connect(address).await else { return reset(client) };
                    let _ = server.set_nodelay(true);
                    connect(client, server, &shared).await;
                }
                Target::Docker(path) => {
                    let Ok(server) = UnixStream::connect(path).await else { return reset(client) };
                    connect(client, server, &shared).await;
                }
            }
        });
    }
}

/// Closes as a machine does that knows nothing of the connection.
fn reset(client: TcpStream) {
    let _ = client.set_zero_linger();
}

/// A connection's part in the count of those that wait for an answer.
struct Waits<'a> {
    counter: &'a AtomicI64,
    waits: bool,
    /// Its next reply is lost.
    doomed: bool,
}

impl Waits<'_> {
    fn set(&mut self, waits: bool) {
        match (std::mem::replace(&mut self.waits, waits), waits) {
            (false, true) => self.counter.fetch_add(1, SeqCst),
            (true, false) => self.counter.fetch_sub(1, SeqCst),
            _ => 0,
        };
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

async fn connect<S: AsyncRead + AsyncWrite>(client: TcpStream, server: S, shared: &Shared) {
    let mut resets = shared.resets.subscribe();
    let held = std::pin::pin!(async {
        // A new connection gets nowhere either.
        let mut passing = shared.passing.subscribe();
        let _ = passing.wait_for(|passing| *passing != Passing::Nothing).await;
    });
    tokio::select! {
        () = held => {}
        _ = resets.changed() => return reset(client),
    }
    let (mut client, server) = (client, server);
    let cut = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = tokio::io::split(server);
        let waits = Mutex::new(Waits { counter: &shared.waiting, waits: false, doomed: false });
        let there = pump(from_client, to_server, shared, Passing::NoneThere, |bytes| {
            shared.note(bytes);
            let mut waits = waits.lock().unwrap();
            let asks = match shared.target {
                Target::Postgres(_) => executes(bytes),
                Target::Docker(_) => true,
            };
            if asks {
                waits.set(true);
            }
            if asks && shared.swallow.load(SeqCst) > 0 && shared.swallow.fetch_sub(1, SeqCst) > 0 {
                waits.doomed = true;
            }
            true
        });
        let back = pump(from_server, to_client, shared, Passing::NoneBack, |_| {
            let mut waits = waits.lock().unwrap();
            if waits.doomed {
                shared.affected.fetch_add(1, SeqCst);
                return false;
            }
            waits.set(false);
            true
        });
        tokio::select! {
            cut = there => cut,
            cut = back => cut,
            _ = resets.changed() => true,
        }
    };
    if cut {
        reset(client);
    }
}

impl Shared {
    /// Remembers which containers a request to Docker names.
    fn note(&self, bytes: &[u8]) {
        let Target::Docker(_) = self.target else { return };
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let text = String::from_utf8_lossy(line);
        let Some((_, rest)) = text.split_once("/containers/") else { return };
        let id: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        if id.len() == 64 {
            self.named.lock().unwrap().insert(id);
        }
    }
}

/// Passes bytes on until the connection ends; true when it must be reset rather than closed.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
    stopped_by: Passing,
    pass: impl Fn(&[u8]) -> bool,
) -> bool {
    let mut passing = shared.passing.subscribe();
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(count @ 1..) => count,
            Ok(_) => {
                // Half closed: the other direction may go on.
                let _ = to.shutdown().await;
                return false;
            }
            Err(_) => return true,
        };
        if !pass(&buffer[..count]) {
            return true;
        }
        let now = *passing.borrow_and_update();
        if now == stopped_by || now == Passing::Nothing {
            shared.affected.fetch_add(1, SeqCst);
            if now == Passing::Nothing {
                continue;
            }
            if passing.wait_for(|passing| *passing != stopped_by).await.is_err() {
                return true;
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return true;
        }
    }
}
