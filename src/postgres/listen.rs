//! NOTIFY on a connection of its own: hints that something may have changed, and nothing more (D1).
//!
//! A hint may be lost, repeated or late. So after each (re)connect comes [`Hint::Resync`], and so it does once a
//! second while nobody listens: whoever acts on hints looks at the tables then. Every few seconds the session is
//! asked whether its subscriptions still stand; a silent or half-open connection is noticed within
//! [`PROBE_EVERY`] + [`PROBE_PATIENCE`].

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::poll_fn;
use leasehold_actors::domain::JobId;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::Notify,
    task::AbortHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{AsyncMessage, Client, Connection, SimpleQueryMessage};

use super::{
    connect::{self, ConnectError},
    error,
    tls::{self, Address},
};
use crate::config::{DatabaseSettings, Pooler};

/// Something may have become QUEUED.
const READY: &str = "leasehold_ready";
/// Something may be due sooner than anybody thinks.
const WAITING: &str = "leasehold_waiting";
/// The payload is a job whose cancel was requested.
const CANCEL: &str = "leasehold_cancel";
/// Some job has ended.
const ENDED: &str = "leasehold_ended";

/// Time between two looks whether the subscriptions still stand.
pub const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How long such a look may take before the connection counts as dead.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(3);
/// Time between two [`Hint::Resync`] while nobody listens.
pub const POLL_EVERY: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// Cancels that wait to be heard at most; with more, everything is looked at instead.
const MOST_CANCELS: usize = 1000;

/// What may have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// A job became QUEUED.
    Ready,
    /// A job is PENDING that may be due sooner than the next look.
    Waiting,
    /// This job's cancel was requested.
    Cancel(JobId),
    /// A job ended.
    Ended,
    /// Hints may have been lost: look at everything.
    Resync,
}

/// How hints come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenMode {
    /// By NOTIFY, at once.
    Listening,
    /// Not at all, or not yet: [`Hint::Resync`] comes every [`POLL_EVERY`].
    Polling,
}

/// The receiving end. Dropped, it stops listening.
#[derive(Debug)]
pub struct Listener {
    state: Arc<State>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct State {
    inbox: Mutex<Inbox>,
    arrived: Notify,
    listening: AtomicBool,
    connects: AtomicU64,
}

/// Hints that nobody has taken yet: a flood of equal ones is one.
#[derive(Debug, Default)]
struct Inbox {
    resync: bool,
    ready: bool,
    waiting: bool,
    ended: bool,
    cancels: VecDeque<JobId>,
}

impl Inbox {
    fn put(&mut self, hint: Hint) {
        match hint {
            Hint::Resync => self.resync = true,
            Hint::Ready => self.ready = true,
            Hint::Waiting => self.waiting = true,
            Hint::Ended => self.ended = true,
            Hint::Cancel(_) if self.cancels.len() >= MOST_CANCELS => self.resync = true,
            Hint::Cancel(job) if self.cancels.contains(&job) => {}
            Hint::Cancel(job) => self.cancels.push_back(job),
        }
    }

    fn take(&mut self) -> Option<Hint> {
        if let Some(job) = self.cancels.pop_front() {
            return Some(Hint::Cancel(job));
        }
        for (flag, hint) in [
            (&mut self.resync, Hint::Resync),
            (&mut self.ready, Hint::Ready),
            (&mut self.waiting, Hint::Waiting),
            (&mut self.ended, Hint::Ended),
        ] {
            if std::mem::take(flag) {
                return Some(hint);
            }
        }
        None
    }
}

impl State {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, hint: Hint) {
        self.inbox().put(hint);
        self.arrived.notify_one();
    }
}

impl Listener {
    /// Begins to listen, now or as soon as the database can be reached: it comes up by itself, and comes back by
    /// itself. The connection lives on the runtime `io`.
    #[must_use]
    pub fn start(settings: &DatabaseSettings, io: &Handle) -> Self {
        let state = Arc::new(State::default());
        let task = io.spawn(run(settings.clone(), Arc::clone(&state)));
        Self { state, task: task.abort_handle() }
    }

    /// The next hint. Can be dropped and asked again without losing one.
    pub async fn recv(&mut self) -> Hint {
        loop {
            let arrived = self.state.arrived.notified();
            if let Some(hint) = self.state.inbox().take() {
                return hint;
            }
            arrived.await;
        }
    }

    /// How hints come at this moment.
    #[must_use]
    pub fn mode(&self) -> ListenMode {
        if self.state.listening.load(Ordering::Relaxed) { ListenMode::Listening } else { ListenMode::Polling }
    }

    /// How often listening was taken up again after it broke off.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.state.connects.load(Ordering::Relaxed).saturating_sub(1)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a session stopped listening.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("a transaction pooler stands between")]
    Pooled,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Lost(String),
}

async fn run(settings: DatabaseSettings, state: Arc<State>) {
    let mut retry = FIRST_RETRY;
    let mut told = false;
    loop {
        let listened_before = state.connects.load(Ordering::Relaxed);
        let why = match session(&settings, &state).await {
            Broken::Pooled => {
                tracing::warn!(
                    every = ?POLL_EVERY,
                    "LISTEN does not work through a transaction pooler; polling instead (DATABASE_POOLER)"
                );
                return poll_for_ever(&state).await;
            }
            why => why,
        };
        state.listening.store(false, Ordering::Relaxed);
        if state.connects.load(Ordering::Relaxed) > listened_before {
            retry = FIRST_RETRY;
            told = false;
        }
        if !told {
            tracing::warn!(error = %why, "not listening for notifications; polling until the connection is back");
            told = true;
        }
        // Whoever waits for hints must not wait for us.
        let mut left = jittered(retry);
        while !left.is_zero() {
            state.put(Hint::Resync);
            let nap = left.min(POLL_EVERY);
            sleep(nap).await;
            left -= nap;
        }
        retry = (retry * 2).min(LAST_RETRY);
    }
}

async fn poll_for_ever(state: &State) {
    loop {
        state.put(Hint::Resync);
        sleep(POLL_EVERY).await;
    }
}

/// Up to a quarter more or less, so that a fleet does not come back as one.
fn jittered(span: Duration) -> Duration {
    span.mul_f64(rand::random_range(0.75..1.25))
}

/// One connection, from its start to its end.
async fn session(settings: &DatabaseSettings, state: &Arc<State>) -> Broken {
    // While a server does not answer, polling goes on.
    let connecting = listening(settings, state);
    tokio::pin!(connecting);
    let (client, driver) = loop {
        match timeout(POLL_EVERY, &mut connecting).await {
            Ok(Ok(connected)) => break connected,
            Ok(Err(why)) => return why,
            Err(_) => state.put(Hint::Resync),
        }
    };
    state.listening.store(true, Ordering::Relaxed);
    if state.connects.fetch_add(1, Ordering::Relaxed) > 0 {
        tracing::info!("listening for notifications again");
    }
    // Only now, after LISTEN: what came before this was nobody's.
    state.put(Hint::Resync);
    let why = watched(&client, driver).await;
    drop(client);
    Broken::Lost(why)
}

type Driver = tokio::task::JoinHandle<String>;

async fn listening(settings: &DatabaseSettings, state: &Arc<State>) -> Result<(Client, Driver), Broken> {
    let mut servers =
        tls::parse(&settings.url, settings.ca_file.as_ref()).map_err(ConnectError::from)?.servers();
    let at = match settings.pooler {
        Pooler::Transaction => return Err(Broken::Pooled),
        Pooler::None if servers.len() == 1 => 0,
        Pooler::Auto | Pooler::None => match connect::primary(settings, &servers).await? {
            found if found.pooled => return Err(Broken::Pooled),
            found => found.at,
        },
    };
    let mut address = servers.swap_remove(at);
    address
        .config
        .keepalives_idle(PROBE_EVERY)
        .keepalives_interval(Duration::from_secs(1))
        .keepalives_retries(3)
        .tcp_user_timeout(PROBE_EVERY + PROBE_PATIENCE);
    let (client, driver) = open(settings, &address, state).await?;
    let listen = format!("listen {READY}; listen {WAITING}; listen {CANCEL}; listen {ENDED}");
    match timeout(PROBE_PATIENCE, client.batch_execute(&listen)).await {
        Ok(Ok(())) => Ok((client, driver)),
        Ok(Err(e)) => Err(Broken::Lost(error::describe(&e))),
        Err(_) => Err(Broken::Lost(format!("no answer to LISTEN within {PROBE_PATIENCE:?}"))),
    }
}

async fn open(
    settings: &DatabaseSettings,
    address: &Address,
    state: &Arc<State>,
) -> Result<(Client, Driver), ConnectError> {
    let mut config = address.config.clone();
    config.application_name(format!("{} listen", settings.application_name));
    let unreachable = |e: &tokio_postgres::Error| ConnectError::Unreachable(error::describe(e));
    let connecting = timeout(settings.store_timeout, config.connect(address.tls.clone())).await;
    let (client, connection) = connecting
        .map_err(|_| ConnectError::Unreachable(format!("no answer within {:?}", settings.store_timeout)))?
        .map_err(|e| unreachable(&e))?;
    // The connection must be driven while LISTEN runs, so it has a task of its own.
    let driver = tokio::spawn(drive(connection, Arc::clone(state)));
    Ok((client, driver))
}

/// Passes notifications on until the connection ends, and says why it did.
async fn drive<S, T>(mut connection: Connection<S, T>, state: Arc<State>) -> String
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(n))) => {
                let hint = match n.channel() {
                    READY => Some(Hint::Ready),
                    WAITING => Some(Hint::Waiting),
                    ENDED => Some(Hint::Ended),
                    CANCEL => n.payload().parse().ok().map(|job| Hint::Cancel(JobId(job))),
                    _ => None,
                };
                if let Some(hint) = hint {
                    state.put(hint);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(e)) => return error::describe(&e),
            None => return "the server closed the connection".to_owned(),
        }
    }
}

/// Asks again and again whether the session still listens; returns why it does not.
async fn watched(client: &Client, mut driver: Driver) -> String {
    loop {
        match timeout(PROBE_EVERY, &mut driver).await {
            Ok(Ok(why)) => return why,
            Ok(Err(_)) => return "its task was interrupted".to_owned(),
            Err(_) => {}
        }
        let probe = client.simple_query("select count(*) from pg_listening_channels()");
        let standing = match timeout(PROBE_PATIENCE, probe).await {
            Ok(Ok(answer)) => {
                answer.iter().any(|m| matches!(m, SimpleQueryMessage::Row(row) if row.get(0) == Some("4")))
            }
            Ok(Err(e)) => {
                driver.abort();
                return error::describe(&e);
            }
            Err(_) => {
                driver.abort();
                return format!("no sign of life within {PROBE_PATIENCE:?}");
            }
        };
        if !standing {
            driver.abort();
            return "the session no longer listens".to_owned();
        }
    }
}
