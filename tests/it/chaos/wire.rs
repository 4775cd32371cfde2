//! The wires of a fleet, and the cuts that are played on them.

use std::{ops::Deref, time::Duration};

use crate::support::{
    eventually::pass,
    proxy::{Passing, Proxy, Target},
};

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

/// A proxy that plays one cut at a time.
#[derive(Debug)]
pub struct Wire {
    proxy: Proxy,
    playing: tokio::sync::Mutex<()>,
}

impl Deref for Wire {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.proxy
    }
}

impl Wire {
    pub async fn before(target: Target) -> Self {
        Self { proxy: Proxy::to(target).await, playing: tokio::sync::Mutex::default() }
    }

    /// Plays one cut and says how many requests or replies it met.
    pub async fn play(&self, cut: Cut, length: Duration) -> u64 {
        let _alone = self.playing.lock().await;
        let proxy = &self.proxy;
        let (held, swallowed) = (proxy.held(), proxy.swallowed());
        match cut {
            Cut::There => self.hold(Passing::NoneThere, length).await,
            Cut::Back => self.hold(Passing::NoneBack, length).await,
            Cut::BlackHole => {
                self.hold(Passing::Lost, length).await;
                proxy.cut();
            }
            Cut::Reset => {
                // In the middle of a call, if there is one within a few seconds.
                for _ in 0..3000 {
                    if proxy.waiting() > 0 {
                        break;
                    }
                    pass(Duration::from_millis(1)).await;
                }
                let met = proxy.waiting();
                proxy.cut();
                return met;
            }
            Cut::Swallow => {
                proxy.swallow_next_answer();
                for _ in 0..300 {
                    if proxy.swallowed() > swallowed {
                        break;
                    }
                    pass(Duration::from_millis(10)).await;
                }
                proxy.swallow_no_more();
            }
        }
        proxy.held() - held + proxy.swallowed() - swallowed
    }

    async fn hold(&self, passing: Passing, length: Duration) {
        self.proxy.lets_pass(passing);
        pass(length).await;
        self.proxy.lets_pass(Passing::All);
    }
}
