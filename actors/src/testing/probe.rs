//! A fake actor behind a `Recipient`: answers with a closure, and remembers how often it was asked.

use std::{
    marker::PhantomData,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use actix::{Actor, Context, Handler, Message, Recipient, ResponseFuture};

type Answer<M> = Box<dyn FnMut(M) -> Pin<Box<dyn Future<Output = <M as Message>::Result>>>>;

/// An actor that exists only to be a mailbox.
pub struct Probe<M: Message> {
    answer: Answer<M>,
    asked: Arc<AtomicUsize>,
    message: PhantomData<fn(M)>,
}

impl<M: Message> std::fmt::Debug for Probe<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("asked", &self.asked).finish_non_exhaustive()
    }
}

/// How a test talks to a started probe.
#[derive(Debug)]
pub struct Probed<M>
where
    M: Message + Send + 'static,
    M::Result: Send,
{
    /// Give this to the unit under test.
    pub recipient: Recipient<M>,
    asked: Arc<AtomicUsize>,
}

impl<M> Probed<M>
where
    M: Message + Send + 'static,
    M::Result: Send,
{
    /// How many messages arrived.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl<M> Probe<M>
where
    M: Message + Send + Unpin + 'static,
    M::Result: Send,
{
    /// Starts a probe that answers at once.
    pub fn answering(mut answer: impl FnMut(M) -> M::Result + 'static) -> Probed<M> {
        Self::answering_later(move |message| {
            let answer = answer(message);
            async move { answer }
        })
    }

    /// Starts a probe whose answers take their time: the future is what the caller waits for. A panic in the
    /// closure kills the probe; one in the future only closes that request, as with a real actor.
    pub fn answering_later<F>(mut answer: impl FnMut(M) -> F + 'static) -> Probed<M>
    where
        F: Future<Output = M::Result> + 'static,
    {
        let asked = Arc::new(AtomicUsize::new(0));
        let probe = Self {
            answer: Box::new(move |message| Box::pin(answer(message))),
            asked: Arc::clone(&asked),
            message: PhantomData,
        };
        Probed { recipient: probe.start().recipient(), asked }
    }
}

impl<M> Actor for Probe<M>
where
    M: Message + Unpin + 'static,
{
    type Context = Context<Self>;
}

impl<M> Handler<M> for Probe<M>
where
    M: Message + Unpin + 'static,
{
    type Result = ResponseFuture<M::Result>;

    fn handle(&mut self, message: M, _: &mut Context<Self>) -> Self::Result {
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.answer)(message)
    }
}
