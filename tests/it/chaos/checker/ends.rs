//! L6: how jobs ended, against how their scripts say that they end.

use std::collections::HashMap;

use super::{
    super::history::{EndEvent, EndOp, History, Outcome},
    Finding,
};

/// L6: every accepted job reaches exactly one terminal state, the scripted one; none is lost, none is stuck.
pub fn one_end_each(history: &History) -> Finding {
    let mut finding =
        Finding::of("L6", "every accepted job reaches exactly one terminal state, as its script says");
    let mut ends: HashMap<i64, Vec<&EndEvent>> = HashMap::new();
    for end in &history.ends {
        ends.entry(end.job).or_default().push(end);
    }
    let mut places: HashMap<i64, Vec<&str>> = HashMap::new();
    for (job, table) in &history.standing {
        places.entry(*job).or_default().push(table);
    }
    for accepted in &history.accepted {
        let job = accepted.job;
        let places = places.get(&job).map_or(&[][..], Vec::as_slice);
        if places != ["ended"] {
            finding.violated(format!("job {job} stands in {places:?} instead of just in `ended`"));
        }
        match ends.get(&job).map_or(&[][..], Vec::as_slice) {
            [] => finding.violated(format!("job {job} never ended")),
            [end] if end.op == EndOp::Came => {
                if !as_scripted(end, &accepted.outcome) {
                    finding.violated(format!(
                        "job {job} ({:?}) should have ended as {:?} and is {} {}",
                        accepted.kind,
                        accepted.outcome,
                        end.state,
                        end.code.as_deref().unwrap_or("")
                    ));
                }
            }
            several => {
                let story: Vec<String> =
                    several.iter().map(|end| format!("{:?} {} at {}", end.op, end.state, end.at)).collect();
                finding.violated(format!("job {job} had more than one end: {}", story.join(", ")));
            }
        }
    }
    let known: std::collections::HashSet<i64> =
        history.accepted.iter().map(|accepted| accepted.job).collect();
    for job in ends.keys().filter(|job| !known.contains(job)) {
        finding.violated(format!("job {job} ended and was never accepted"));
    }
    finding.looked_at("jobs", history.accepted.len());
    finding.looked_at("ends", history.ends.len());
    finding
}

fn as_scripted(end: &EndEvent, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Completed => end.state == "COMPLETED",
        Outcome::Canceled => end.state == "CANCELED",
        Outcome::Failed { code } => end.state == "FAILED" && end.code.as_deref() == Some(code),
    }
}
