//! A proxy before PostgreSQL that does to connections what networks do: stall, cut, refuse, and lose the answer
//! to a statement that arrived.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// Stands before one server.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: tokio::task::AbortHandle,
}

#[derive(Debug)]
struct Shared {
    target: String,
    /// Nothing passes in either direction; connections stay open.
    stalled: watch::Sender<bool>,
    /// Rises to cut every connection that exists.
    cuts: watch::Sender<u64>,
    refusing: AtomicBool,
    delay_us: AtomicU64,
    /// The answer to the next statement that is executed is dropped, and its connection with it.
    swallow: AtomicBool,
    swallowed: AtomicU64,
}

impl Proxy {
    /// Before the server of a database URL.
    pub async fn before(url: &str) -> Self {
        let url = url::Url::parse(url).unwrap();
        let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target,
            stalled: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
            refusing: AtomicBool::new(false),
            delay_us: AtomicU64::new(0),
            swallow: AtomicBool::new(false),
            swallowed: AtomicU64::new(0),
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

    /// Lets nothing through in either direction, without closing anything; or everything again.
    pub fn stall(&self, on: bool) {
        self.shared.stalled.send_replace(on);
    }

    /// Closes new connections at once; or takes them again.
    pub fn refuse(&self, on: bool) {
        self.shared.refusing.store(on, Ordering::SeqCst);
    }

    /// Cuts every connection that exists.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Delays whatever passes.
    pub fn delay(&self, delay: Duration) {
        self.shared.delay_us.store(u64::try_from(delay.as_micros()).unwrap(), Ordering::SeqCst);
    }

    /// Lets the next statement (with parameters) reach the server, and its answer nobody: the connection breaks
    /// instead. Preparing a statement is none.
    pub fn swallow_next_answer(&self) {
        self.shared.swallow.store(true, Ordering::SeqCst);
    }

    /// How many answers were swallowed so far.
    pub fn swallowed(&self) -> u64 {
        self.shared.swallowed.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.refusing.load(Ordering::SeqCst) {
            continue;
        }
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(&shared.target).await else { return };
            let _ = client.set_nodelay(true);
            let _ = server.set_nodelay(true);
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let mut cuts = shared.cuts.subscribe();
            let doomed = AtomicBool::new(false);
            tokio::select! {
                () = pump(from_client, to_server, &shared, |bytes| {
                    if executes(bytes) && shared.swallow.swap(false, Ordering::SeqCst) {
                        doomed.store(true, Ordering::SeqCst);
                    }
                    true
                }) => {}
                () = pump(from_server, to_client, &shared, |_| {
                    let lost = doomed.load(Ordering::SeqCst);
                    shared.swallowed.fetch_add(u64::from(lost), Ordering::SeqCst);
                    !lost
                }) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

/// True when one of the client's messages is Execute.
pub(crate) fn executes(mut messages: &[u8]) -> bool {
    while let [kind, a, b, c, d, ..] = messages {
        if *kind == b'E' {
            return true;
        }
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        messages = messages.get(1 + length..).unwrap_or_default();
    }
    false
}

/// Passes bytes on until `pass` says no.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    pass: impl Fn(&[u8]) -> bool,
) {
    let mut stalled = shared.stalled.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        if !pass(&buffer[..count]) {
            return;
        }
        let delay = shared.delay_us.load(Ordering::SeqCst);
        if delay > 0 {
            super::eventually::pass(Duration::from_micros(delay)).await;
        }
        if stalled.wait_for(|stalled| !stalled).await.is_err()
            || to.write_all(&buffer[..count]).await.is_err()
        {
            return;
        }
    }
}
