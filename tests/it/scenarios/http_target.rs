//! HTTP and HTTPS servers that count who connects and remember what was asked of them.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

/// What a target does with a connection once the request's head (and body, by Content-Length) was read.
pub type Answer = Arc<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

/// A server on a loopback address, stopped when dropped.
pub struct Target {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Target {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Target {
    /// A plain server.
    pub async fn http(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start("127.0.0.1:0", None, Arc::new(answer)).await
    }

    /// A plain server at this address.
    pub async fn http_at(at: &str, answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start(at, None, Arc::new(answer)).await
    }

    /// A server that speaks TLS.
    pub async fn https(
        config: ServerConfig,
        answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self::start("127.0.0.1:0", Some(TlsAcceptor::from(Arc::new(config))), Arc::new(answer)).await
    }

    /// A listener that nobody may ever connect to.
    pub async fn forbidden() -> Self {
        Self::http(|_| ok("the secret of an internal service")).await
    }

    async fn start(at: &str, tls: Option<TlsAcceptor>, answer: Answer) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (counted, seen) = (Arc::clone(&connections), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                counted.fetch_add(1, Ordering::SeqCst);
                let (tls, answer, seen) = (tls.clone(), Arc::clone(&answer), Arc::clone(&seen));
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &answer, &seen).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, &answer, &seen).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, connections, requests, task }
    }

    /// How many connections came.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The requests, head and body, in order.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// `http://127.0.0.1:PORT` and the path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The rule that lets probes reach this target.
    pub fn rule(&self) -> String {
        self.address.to_string()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, answer: &Answer, seen: &Mutex<Vec<String>>) {
    let mut request = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
                })
                .unwrap_or(0_usize);
            if body.len() >= length {
                seen.lock().unwrap().push(text.clone());
                // A probe may hang up before it has read everything.
                let _ = stream.write_all(&answer(&text)).await;
                let _ = stream.shutdown().await;
                return;
            }
        }
        match stream.read(&mut chunk).await {
            Ok(n) if n > 0 => request.extend_from_slice(&chunk[..n]),
            _ => return,
        }
    }
}

/// A 200 with this body.
pub fn ok(body: &str) -> Vec<u8> {
    status("200 OK", body)
}

/// Any status with this body.
pub fn status(line: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {line}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

/// A redirect.
pub fn redirect(line: &str, location: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        .into_bytes()
}
