//! A proxy before a server (PostgreSQL, or a Docker engine's socket) that does to connections what networks do: stall
//! them in one direction or both, lose what passes, cut, refuse and delay them, and lose the answer to a request that
//! arrived. It counts what it did that to.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

/// Where a proxy leads.
#[derive(Debug, Clone)]
pub enum Target {
    Postgres(String),
    Docker(PathBuf),
}

/// What a proxy does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    All,
    /// Held up on the way to the server, back, or both; delivered later, as TCP would.
    NoneThere,
    NoneBack,
    NoneAtAll,
    /// Lost for good in both directions; a new connection does not come about. To be followed by a cut.
    Lost,
}

impl Passing {
    /// True when bytes of one direction do not pass; `other` is what holds up only those of the other direction.
    fn holds(self, other: Self) -> bool {
        self != Self::All && self != other
    }
}

/// Listens on loopback until dropped.
#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: tokio::task::AbortHandle,
}

#[derive(Debug)]
struct Shared {
    target: Target,
    passing: watch::Sender<Passing>,
    /// Rises to cut every connection that exists.
    cuts: watch::Sender<u64>,
    refusing: AtomicBool,
    /// So many of the next connections are closed at once.
    refuse_next: AtomicU64,
    delay_us: AtomicU64,
    /// The answer to the next request is dropped, and its connection with it.
    swallow: AtomicBool,
    swallowed: AtomicU64,
    /// Reads that were held up or lost.
    held: AtomicU64,
    /// Connections with a request that was not answered yet.
    waiting: AtomicI64,
    /// Ids of containers that requests named.
    named: Mutex<HashSet<String>>,
}

impl Proxy {
    /// Before the server of a database URL.
    pub async fn before(url: &str) -> Self {
        let url = url::Url::parse(url).unwrap();
        let address = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
        Self::to(Target::Postgres(address)).await
    }

    pub async fn to(target: Target) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target,
            passing: watch::Sender::new(Passing::All),
            cuts: watch::Sender::new(0),
            refusing: AtomicBool::new(false),
            refuse_next: AtomicU64::new(0),
            delay_us: AtomicU64::new(0),
            swallow: AtomicBool::new(false),
            swallowed: AtomicU64::new(0),
            held: AtomicU64::new(0),
            waiting: AtomicI64::new(0),
            named: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Self { port, shared, accepting }
    }

    /// The URL, by way of this proxy.
    pub fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(self.port)).unwrap();
        url.into()
    }

    /// What passes from now on.
    pub fn lets_pass(&self, passing: Passing) {
        self.shared.passing.send_replace(passing);
    }

    /// Lets nothing through in either direction, without closing anything; or everything again.
    pub fn stall(&self, on: bool) {
        self.lets_pass(if on { Passing::NoneAtAll } else { Passing::All });
    }

    /// Closes new connections at once; or takes them again.
    pub fn refuse(&self, on: bool) {
        self.shared.refusing.store(on, SeqCst);
    }

    /// Closes so many of the next connections at once, and takes those behind them.
    pub fn refuse_next(&self, connections: u64) {
        self.shared.refuse_next.store(connections, SeqCst);
    }

    /// Resets every connection that exists.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Delays whatever passes.
    pub fn delay(&self, delay: Duration) {
        self.shared.delay_us.store(u64::try_from(delay.as_micros()).unwrap(), SeqCst);
    }

    /// Lets the next request reach the server, and its answer nobody: the connection breaks instead. To PostgreSQL a
    /// statement with parameters is one, and preparing it is none.
    pub fn swallow_next_answer(&self) {
        self.shared.swallow.store(true, SeqCst);
    }

    /// No answer is swallowed that was not met yet.
    pub fn swallow_no_more(&self) {
        self.shared.swallow.store(false, SeqCst);
    }

    /// How many answers were swallowed so far.
    pub fn swallowed(&self) -> u64 {
        self.shared.swallowed.load(SeqCst)
    }

    /// How often bytes were held up or lost so far.
    pub fn held(&self) -> u64 {
        self.shared.held.load(SeqCst)
    }

    /// How many connections wait for an answer.
    pub fn waiting(&self) -> u64 {
        self.shared.waiting.load(SeqCst).max(0).unsigned_abs()
    }

    /// The ids of the containers that requests to an engine named.
    pub fn named(&self) -> Vec<String> {
        self.shared.named.lock().unwrap().iter().cloned().collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // Out of descriptors, for a moment: the next connection may do.
        let Ok((client, _)) = listener.accept().await else { continue };
        let one_less = |left: u64| left.checked_sub(1);
        if shared.refusing.load(SeqCst) || shared.refuse_next.fetch_update(SeqCst, SeqCst, one_less).is_ok() {
            continue;
        }
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
    /// Its next answer is lost.
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

async fn connect<S: AsyncRead + AsyncWrite>(mut client: TcpStream, server: S, shared: &Shared) {
    let mut cuts = shared.cuts.subscribe();
    let lost = async {
        let mut passing = shared.passing.subscribe();
        let _ = passing.wait_for(|passing| *passing != Passing::Lost).await;
    };
    tokio::select! {
        () = lost => {}
        _ = cuts.changed() => return reset(client),
    }
    let broken = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = tokio::io::split(server);
        let waits = Mutex::new(Waits { counter: &shared.waiting, waits: false, doomed: false });
        let there = pump(from_client, to_server, shared, Passing::NoneBack, |bytes| {
            let asks = match shared.target {
                Target::Postgres(_) => executes(bytes),
                Target::Docker(_) => shared.note(bytes),
            };
            if asks {
                let mut waits = waits.lock().unwrap();
                waits.set(true);
                waits.doomed |= shared.swallow.swap(false, SeqCst);
            }
            true
        });
        let back = pump(from_server, to_client, shared, Passing::NoneThere, |_| {
            let mut waits = waits.lock().unwrap();
            shared.swallowed.fetch_add(u64::from(waits.doomed), SeqCst);
            waits.set(false);
            !waits.doomed
        });
        tokio::select! {
            broken = there => broken,
            broken = back => broken,
            _ = cuts.changed() => true,
        }
    };
    if broken {
        reset(client);
    }
}

/// True when one of the client's messages is Execute.
fn executes(mut messages: &[u8]) -> bool {
    while let [kind, a, b, c, d, ..] = messages {
        if *kind == b'E' {
            return true;
        }
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        messages = messages.get(1 + length..).unwrap_or_default();
    }
    false
}

impl Shared {
    /// Remembers which container a request to Docker names. Whatever goes there is one.
    fn note(&self, bytes: &[u8]) -> bool {
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let text = String::from_utf8_lossy(line);
        if let Some((_, rest)) = text.split_once("/containers/") {
            let id: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
            if id.len() == 64 {
                self.named.lock().unwrap().insert(id);
            }
        }
        true
    }
}

/// Passes bytes on until the connection ends, or `pass` says no; true when it must be reset rather than closed. `other`
/// is what holds up only the other direction.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
    other: Passing,
    pass: impl Fn(&[u8]) -> bool,
) -> bool {
    let mut passing = shared.passing.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(count @ 1..) => count,
            Ok(_) => {
                let _ = to.shutdown().await;
                return false;
            }
            Err(_) => return true,
        };
        if !pass(&buffer[..count]) {
            return true;
        }
        let delay = shared.delay_us.load(SeqCst);
        if delay > 0 {
            super::eventually::pass(Duration::from_micros(delay)).await;
        }
        let now = *passing.borrow_and_update();
        if now.holds(other) {
            shared.held.fetch_add(1, SeqCst);
            if now == Passing::Lost {
                continue;
            }
            if passing.wait_for(|now| !now.holds(other)).await.is_err() {
                return true;
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return true;
        }
    }
}
