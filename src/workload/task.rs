//! A task that does not outlive the one who waits for it.

/// A spawned task that is aborted, at its next `.await`, once this is dropped.
pub(super) struct AbortOnDrop<T>(pub(super) tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
