//! A small proxy before a Docker engine: forwards, answers itself, or lets an answer get lost.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream, UnixStream},
    task::JoinHandle,
};

/// What becomes of one request.
#[derive(Debug, Clone)]
pub enum Action {
    /// It goes to the engine, whose answer comes back.
    Forward,
    /// It never reaches the engine.
    Answer(u16, String),
    /// It reaches the engine; its answer is replaced.
    ReplaceAnswer(u16, String),
    /// It reaches the engine; its answer is swallowed and the connection cut.
    SwallowAnswer,
}

/// Listens on loopback; ends with the value.
pub struct EngineProxy {
    pub endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl EngineProxy {
    /// `rule` is asked with "METHOD /path?query" for every request; bollard uses a connection for each.
    pub async fn start(engine: &str, rule: impl Fn(&str) -> Action + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let socket = engine.strip_prefix("unix://").expect("test engines listen on unix sockets").to_owned();
        let (rule, requests) = (Arc::new(rule), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (rule, socket, seen) = (Arc::clone(&rule), socket.clone(), Arc::clone(&seen));
                tokio::spawn(async move { serve(client, &socket, &*rule, &seen).await });
            }
        });
        Self { endpoint, requests, task }
    }

    /// All requests so far, as "METHOD /path?query".
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for EngineProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut client: TcpStream,
    socket: &str,
    rule: &(dyn Fn(&str) -> Action + Send + Sync),
    seen: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        client.read_buf(&mut head).await.ok().filter(|read| *read > 0)?;
    }
    let line = String::from_utf8_lossy(&head).lines().next()?.to_owned();
    let request = line.rsplit_once(' ')?.0.to_owned();
    seen.lock().unwrap().push(request.clone());
    let action = rule(&request);
    if let Action::Answer(status, body) = &action {
        return answer(&mut client, *status, body).await;
    }
    // The rest of the request: an engine answers a whole one.
    let begun = head.len() - (head.windows(4).position(|w| w == b"\r\n\r\n")? + 4);
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let mut missing = length.unwrap_or(0).saturating_sub(begun);
    while missing > 0 {
        missing = missing.saturating_sub(client.read_buf(&mut head).await.ok().filter(|read| *read > 0)?);
    }
    let mut engine = UnixStream::connect(socket).await.ok()?;
    engine.write_all(&head).await.ok()?;
    match action {
        Action::Forward | Action::Answer(..) => {
            copy_bidirectional(&mut client, &mut engine).await.ok()?;
        }
        Action::ReplaceAnswer(status, body) => {
            engine.read_buf(&mut Vec::with_capacity(65_536)).await.ok()?;
            answer(&mut client, status, &body).await?;
        }
        Action::SwallowAnswer => {
            engine.read_buf(&mut Vec::with_capacity(65_536)).await.ok()?;
        }
    }
    Some(())
}

async fn answer(client: &mut TcpStream, status: u16, body: &str) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.ok()?;
    client.write_all(body.as_bytes()).await.ok()?;
    client.shutdown().await.ok()
}
