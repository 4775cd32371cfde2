//! Attach a container, append output: facts about the run, recorded only under a live lease.

use super::world::World;
use crate::{
    domain::{ContainerId, Epoch, NodeId},
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
        let claim = Epoch(lease.claim_epoch);
        for batch in batches {
            let key = (authority.job, claim, batch.stream, batch.first_byte);
            let stored =
                self.logs.iter().any(|(job, epoch, stream, at, _)| (*job, *epoch, *stream, *at) == key);
            if !stored {
                self.logs.push((key.0, key.1, key.2, key.3, batch.data.clone()));
            }
        }
        LogAppend::Stored
    }

    pub(super) fn log_offsets(&self, authority: &Authority) -> StoredLogs {
        let Some(lease) = self.live(authority) else { return StoredLogs::NotLive };
        let end = |stream: LogStream| {
            let of_the_claim = self.logs.iter().filter(|(job, epoch, of, ..)| {
                (*job, *epoch, *of) == (authority.job, Epoch(lease.claim_epoch), stream)
            });
            of_the_claim.map(|(.., first_byte, data)| first_byte + data.len() as u64).max().unwrap_or(0)
        };
        StoredLogs::Offsets(LogOffsets {
            stdout: end(LogStream::Stdout),
            stderr: end(LogStream::Stderr),
            system: end(LogStream::System),
        })
    }
}
