//! Attach a container, append output: facts about the run, recorded only under a live lease.

use super::world::{StoredBatch, World};
use crate::{
    domain::{ContainerId, Epoch, NodeId, TaskKey},
    ports::{Attach, Authority, LogAppend, LogBatch, LogOffsets, LogStream, StoredLogs},
};

impl World {
    pub(super) fn attach(&mut self, authority: &Authority, node: &NodeId, container: &ContainerId) -> Attach {
        let Some(lease) = self.live_mut(authority) else { return Attach::NotLive };
        if lease.placement.as_ref().is_none_or(|placement| placement.node != *node) {
            return Attach::WrongRuntimeNode;
        }
        match &lease.container {
            Some(attached) if attached != container => {
                Attach::ContainerConflict { attached: attached.clone() }
            }
            _ => {
                lease.container = Some(container.clone());
                Attach::Attached
            }
        }
    }

    pub(super) fn append_logs(&mut self, authority: &Authority, batches: &[LogBatch]) -> LogAppend {
        let Some(lease) = self.live(authority) else { return LogAppend::NotLive };
        let (job, epoch) = (authority.job, Epoch(lease.claim_epoch));
        for batch in batches {
            let stored = self.logs.iter().any(|old| {
                (old.job, &old.task, old.epoch, old.stream, old.first_byte)
                    == (job, &batch.task, epoch, batch.stream, batch.first_byte)
            });
            if !stored {
                let LogBatch { task, stream, first_byte, data } = batch.clone();
                self.logs.push(StoredBatch { job, task, epoch, stream, first_byte, data });
            }
        }
        LogAppend::Stored
    }

    pub(super) fn log_offsets(&self, authority: &Authority, task: Option<&TaskKey>) -> StoredLogs {
        let Some(lease) = self.live(authority) else { return StoredLogs::NotLive };
        let end = |stream: LogStream| {
            let of_the_claim = self.logs.iter().filter(|old| {
                (old.job, old.task.as_ref(), old.epoch, old.stream)
                    == (authority.job, task, Epoch(lease.claim_epoch), stream)
            });
            of_the_claim.map(|old| old.first_byte + old.data.len() as u64).max().unwrap_or(0)
        };
        StoredLogs::Offsets(LogOffsets {
            stdout: end(LogStream::Stdout),
            stderr: end(LogStream::Stderr),
            system: end(LogStream::System),
        })
    }
}
