//! Attach a container, append output: facts about the run, recorded only under a live lease.

use super::world::World;
use crate::{
    domain::{ContainerId, NodeId},
    ports::{Attach, Authority, LogAppend, LogBatch},
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
        if self.live(authority).is_none() {
            return LogAppend::NotLive;
        }
        for batch in batches {
            let key = (authority.job, authority.epoch, batch.stream, batch.first_byte);
            let stored =
                self.logs.iter().any(|(job, epoch, stream, at, _)| (*job, *epoch, *stream, *at) == key);
            if !stored {
                self.logs.push((key.0, key.1, key.2, key.3, batch.data.clone()));
            }
        }
        LogAppend::Stored
    }
}
