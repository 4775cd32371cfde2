//! A program that embeds Leasehold: it submits a job in its own transaction and runs it in its own process.
//!
//! ```text
//! leasehold dev &                                    # or any database: leasehold migrate
//! DATABASE_URL=postgres://… cargo run --example handler
//! ```
//!
//! It writes an order and the job that confirms it in one transaction, waits until the handler has sent the
//! confirmation, drains, and ends.

use std::{error::Error, time::Duration};

use leasehold::{
    Client, Worker,
    protocol::domain::NewJob,
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// What the handler is called with; any type that serde can read.
#[derive(Debug, Serialize, Deserialize)]
struct Confirmation {
    order: i64,
    to: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    leasehold::telemetry::init("warn,leasehold=info")?;
    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL; `leasehold dev` prints one")?;

    // A worker with one handler. Lease times, concurrency and the rest come from the environment.
    let (sent, mut confirmations) = mpsc::unbounded_channel();
    let worker = Worker::builder()
        .database(&url)
        .handler("confirm-order", move |job: Job<Confirmation>, lease: LeaseHandle| {
            let sent = sent.clone();
            async move {
                let done = confirm(job.payload, &lease).await?;
                // Nobody may be waiting any more.
                let _ = sent.send(done.clone());
                Ok(done)
            }
        })
        .build()
        .await?;

    // The program's own connection, table and transaction: no order without its job, no job without its order.
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("create temporary table orders (id bigint primary key, item text)").await?;
    let transaction = client.transaction().await?;
    transaction.execute("insert into orders values (42, 'a lamp')", &[]).await?;
    let confirmation = Confirmation { order: 42, to: "ann@example.org".to_owned() };
    let submitted = Client::submit(&transaction, NewJob::handler("confirm-order", &confirmation)).await?;
    transaction.commit().await?;
    println!("job {} is submitted", submitted.job);

    // Run until the confirmation is out; a service would wait for its signals here (`worker::StopSignals`).
    let exit = worker
        .run_until(async {
            let done = tokio::time::timeout(Duration::from_secs(30), confirmations.recv()).await;
            match done {
                Ok(Some(text)) => println!("{text}"),
                _ => eprintln!("no confirmation within 30 s; is another worker serving confirm-order?"),
            }
        })
        .await?;
    println!("{exit:?}");
    Ok(())
}

/// Does the work in steps, and looks at its lease before what must not happen twice.
async fn confirm(order: Confirmation, lease: &LeaseHandle) -> Result<String, HandlerError> {
    lease.progress(&"writing").await?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(200)) => {}
        reason = lease.cancelled() => {
            eprintln!("told to stop: {reason:?}");
            return Err(HandlerError::stopped());
        }
    }
    if !order.to.contains('@') {
        return Err(HandlerError::user("bad_address", format!("{:?} is no address", order.to)));
    }
    // Whatever is written to can refuse an older writer by the epoch.
    if !lease.is_live() {
        return Err(HandlerError::stopped());
    }
    Ok(format!("order {} is confirmed to {} (epoch {})", order.order, order.to, lease.epoch()))
}
