//! What the demo's HEARTBEAT probes: a web server of one answer, on loopback.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

/// Answers every request with 200 until it is dropped.
#[derive(Debug)]
pub(super) struct Responder {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Responder {
    pub(super) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(timeout(Duration::from_secs(5), answer(connection)));
            }
        });
        Ok(Self { address, task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut connection: TcpStream) -> std::io::Result<()> {
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    // The end of the head is enough: a probe of the demo has no body.
    while !request.windows(4).any(|window| window == b"\r\n\r\n") && request.len() < 16 * 1024 {
        match connection.read(&mut piece).await? {
            0 => break,
            length => request.extend_from_slice(&piece[..length]),
        }
    }
    let body = "alive\n";
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    connection.write_all(format!("{head}{body}").as_bytes()).await?;
    connection.shutdown().await
}
