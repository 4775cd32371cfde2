//! A resource that refuses an older epoch, a handler that writes to it, and a writer that comes too late.
//!
//! ```text
//! leasehold dev &                                    # or any database: leasehold migrate
//! DATABASE_URL=postgres://… cargo run --example fenced
//! ```
//!
//! The handler puts a report to the resource over HTTP under its epoch, then books it and completes the job in one
//! transaction of its own. Afterwards somebody who believes that he still holds an earlier lease is refused.

use std::{
    collections::HashMap,
    error::Error,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold::{
    Client, Worker,
    protocol::domain::NewJob,
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

// ---------------------------------------------------------------------------------------------------
// The resource
// ---------------------------------------------------------------------------------------------------

/// Reports by job, each with the epoch of its writer.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<HashMap<String, (i64, String)>>>);

impl Reports {
    /// Compares and stores in one step: between the two nobody else may write.
    fn put(&self, path: &str, epoch: i64, body: String) -> (u16, String) {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reports.get(path) {
            Some((latest, _)) if *latest > epoch => {
                (409, format!("epoch {epoch} is over, the latest is {latest}"))
            }
            _ => {
                reports.insert(path.to_owned(), (epoch, body));
                (200, format!("stored under epoch {epoch}"))
            }
        }
    }

    /// As much of HTTP as the example needs.
    async fn serve(self, listener: TcpListener) -> io::Result<()> {
        loop {
            let (mut stream, _) = listener.accept().await?;
            let mut request = String::new();
            stream.read_to_string(&mut request).await?;
            let (head, body) = request.split_once("\r\n\r\n").unwrap_or((&request, ""));
            let path = head.split(' ').nth(1).unwrap_or_default();
            let epoch = head.lines().find_map(|line| line.strip_prefix("Fencing-Epoch: "));
            let (status, text) = match epoch.and_then(|epoch| epoch.parse().ok()) {
                Some(epoch) => self.put(path, epoch, body.to_owned()),
                None => (428, "say under which Fencing-Epoch you write".to_owned()),
            };
            stream.write_all(format!("HTTP/1.1 {status} -\r\n\r\n{text}").as_bytes()).await?;
        }
    }
}

/// Puts a report; answers status and text.
async fn put(to: SocketAddr, job: i64, epoch: i64, body: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(to).await?;
    let request = format!("PUT /reports/{job} HTTP/1.1\r\nFencing-Epoch: {epoch}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(500);
    Ok((status, answer.split_once("\r\n\r\n").map(|(_, text)| text.to_owned()).unwrap_or_default()))
}

// ---------------------------------------------------------------------------------------------------
// The handler
// ---------------------------------------------------------------------------------------------------

async fn report(url: String, to: SocketAddr, lease: LeaseHandle) -> Result<(), HandlerError> {
    let (status, text) = put(to, lease.job().0, lease.epoch().0, "all is well").await?;
    if status == 409 {
        // Somebody else has the job by now.
        return Err(HandlerError::system("fenced", text));
    }
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let transaction = client.transaction().await?;
    transaction.execute("insert into example_bookings values ($1)", &[&lease.job().0]).await?;
    lease.complete_in(&transaction, &text).await?;
    transaction.commit().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    leasehold::telemetry::init("warn,leasehold=info")?;
    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL; `leasehold dev` prints one")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let resource = listener.local_addr()?;
    tokio::spawn(Reports::default().serve(listener));

    let (done, mut reported) = mpsc::unbounded_channel();
    let handler_url = url.clone();
    let worker = Worker::builder()
        .database(&url)
        .handler("report", move |_: Job<()>, lease: LeaseHandle| {
            let (url, done) = (handler_url.clone(), done.clone());
            async move {
                report(url, resource, lease.clone()).await?;
                // Nobody may be waiting any more.
                let _ = done.send((lease.job().0, lease.epoch().0));
                Ok(())
            }
        })
        .build()
        .await?;

    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("create table if not exists example_bookings (job bigint)").await?;
    let transaction = client.transaction().await?;
    Client::submit(&transaction, NewJob::handler("report", &())).await?;
    transaction.commit().await?;

    let told = std::sync::Mutex::new(None);
    worker
        .run_until(async {
            let first = tokio::time::timeout(Duration::from_secs(30), reported.recv()).await;
            *told.lock().unwrap_or_else(PoisonError::into_inner) = first.ok().flatten();
        })
        .await?;
    let told = told.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (job, epoch) = told.ok_or("no report within 30 s; is another worker serving `report`?")?;

    let late = put(resource, job, epoch - 1, "I was asleep").await?;
    println!("a writer under epoch {}: {} {}", epoch - 1, late.0, late.1);
    let row = client
        .query_one(
            "select state, output::text, (select count(*) from example_bookings b where b.job = job_id)
             from leasehold.jobs_view where job_id = $1",
            &[&job],
        )
        .await?;
    let (state, output, bookings): (&str, &str, i64) = (row.get(0), row.get(1), row.get(2));
    println!("job {job} is {state}, its output is {output}, it was booked {bookings} time(s)");
    client.batch_execute("drop table example_bookings").await?;
    Ok(())
}
