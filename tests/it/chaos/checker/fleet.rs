//! L7 to L9: containers, permits and slots.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    super::history::{Change, History, Micros},
    Finding,
};

/// L7: a container is only touched through the node that created it; none outlives its grant by more than the
/// limit once its node is reachable; and none is left in the end.
pub fn containers_at_home(history: &History) -> Finding {
    let mut finding = Finding::of("L7", "containers are touched through their own node only, and none stays");
    let engine_of: HashMap<&str, &str> =
        history.nodes.iter().map(|(node, engine)| (node.as_str(), engine.as_str())).collect();
    let home: HashMap<&str, &str> =
        history.containers.iter().map(|seen| (seen.id.as_str(), seen.engine.as_str())).collect();
    for seen in &history.containers {
        if engine_of.get(seen.node.as_str()) != Some(&seen.engine.as_str()) {
            finding
                .violated(format!("a container of node {} was found on engine {}", seen.node, seen.engine));
        }
    }
    finding.looked_at("containers", history.containers.len());
    for (node, id) in &history.touched {
        let engine = engine_of.get(node.as_str()).copied().unwrap_or("none");
        if home.get(id.as_str()).is_some_and(|home| *home != engine) {
            finding.violated(format!("container {id} was asked for at node {node}, where it is not"));
        }
    }
    finding.looked_at("containers named in requests", history.touched.len());

    // A grant reaches over takeovers: the container keeps the epoch of its claim.
    let mut over: HashMap<(i64, i64), Micros> = HashMap::new();
    for event in &history.leases {
        if event.change() == Change::Gone {
            over.insert((event.job, event.claim_epoch), event.at);
        }
        // Attached containers are at home where the job was placed.
        if let (Some(node), Some(id)) = (&event.node, &event.container)
            && let (Some(home), Some(engine)) = (home.get(id.as_str()), engine_of.get(node.as_str()))
            && home != engine
        {
            finding.violated(format!(
                "job {} is on node {node} and has a container of engine {home}",
                event.job
            ));
        }
    }
    let mut longest = 0;
    for seen in &history.containers {
        let Some(end) = over.get(&(seen.job, seen.epoch)) else { continue };
        let unreachable: Micros = history
            .outages
            .iter()
            .filter(|outage| outage.node == seen.node)
            .map(|outage| (outage.to.min(seen.last_seen) - outage.from.max(*end)).max(0))
            .sum();
        let outlived = seen.last_seen - end - unreachable;
        longest = longest.max(outlived);
        if outlived > history.limits.leftover {
            finding.violated(format!(
                "the container of job {} epoch {} outlived its grant by {} ms on a reachable node",
                seen.job,
                seen.epoch,
                outlived / 1000
            ));
        }
    }
    finding.looked_at(
        "ms that the longest-lived outlived its grant",
        usize::try_from(longest / 1000).unwrap_or(0),
    );
    for left in &history.left {
        finding.violated(format!("left behind: {left}"));
    }
    finding
}

/// L8: permits are conserved.
pub fn permits_conserved(history: &History) -> Finding {
    let mut finding = Finding::of("L8", "permits are conserved");
    let mut workers: BTreeMap<&str, bool> = BTreeMap::new();
    for sample in &history.permits {
        let sum: u32 = sample.states.iter().sum();
        if sum != sample.capacity {
            finding.violated(format!(
                "{}: {:?} add up to {sum}, not to {}",
                sample.worker, sample.states, sample.capacity
            ));
        }
        if sample.last && sample.states[5] != sample.capacity {
            finding.violated(format!("{}: {:?} although all work is done", sample.worker, sample.states));
        }
        *workers.entry(&sample.worker).or_default() |= sample.last;
    }
    for (worker, _) in workers.iter().filter(|(_, quiet)| !**quiet) {
        finding.violated(format!("{worker} was never seen at rest"));
    }
    finding.looked_at("samples", history.permits.len());
    finding.looked_at("workers", workers.len());
    finding
}

/// L9: the slots in use are the RUNNING jobs on the node.
pub fn slots_are_jobs(history: &History) -> Finding {
    let mut finding = Finding::of("L9", "node slots in use are the RUNNING jobs on the node");
    let mut most = 0;
    for sample in &history.slots {
        let slots: HashSet<_> = sample.slots.iter().collect();
        let running: HashSet<_> = sample.running.iter().collect();
        if slots != running || slots.len() != sample.slots.len() {
            let differing: Vec<_> = slots.symmetric_difference(&running).collect();
            finding.violated(format!("slots and RUNNING jobs differ in {differing:?} at {}", sample.at));
        }
        let mut per_node: HashMap<&str, usize> = HashMap::new();
        for (node, _) in &sample.running {
            *per_node.entry(node).or_default() += 1;
        }
        for (node, used) in per_node {
            most = most.max(used);
            if used > history.limits.slots_per_node {
                finding.violated(format!(
                    "{used} jobs on node {node}, which has {}",
                    history.limits.slots_per_node
                ));
            }
        }
    }
    finding.looked_at("snapshots", history.slots.len());
    finding.looked_at("jobs on a node at most", most);
    finding
}
