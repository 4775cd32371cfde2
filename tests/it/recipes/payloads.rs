//! A client that writes its payload all the time, while the job goes to and fro between two workers.

use std::time::Duration;

use leasehold_actors::{
    domain::{JobState, Namespace},
    ports::{PayloadUpdate, recipe::PayloadSet},
};

use super::bed::Bed;
use crate::support::{eventually::pass, size::rounds};

/// Odd on purpose: nulls, numbers that no float holds, keys out of order, white space, a key `execution` further in.
fn text(counter: u32) -> String {
    format!(
        "{{ \"z\":null,\"counter\":{counter} ,\"big\":123456789012345678901234567890,\t\"a\":{{\"y\":[1.50,1E+2,-0],\"execution\":null}},\
         \"10\":1,\"9\":\"\\u00e9é\",\"e\":1e-7}}"
    )
}

/// The client's own bytes: all but the last member, which is what workers publish.
fn own(payload: &str) -> String {
    match payload.rfind(",\"execution\":{\"version\"") {
        Some(at) => format!("{}}}", &payload[..at]),
        None => payload.to_owned(),
    }
}

/// E5: each handoff ends under the very lease that it was begun under, since nobody renews it here.
pub async fn a_client_that_writes_its_payload_beside_handoffs_loses_no_byte_and_holds_up_no_handoff(
    mut bed: Bed,
) {
    let (updates, handoffs) = (rounds(200, 1000), rounds(20, 100));
    bed.lease = Duration::from_secs(30);
    let (amd, arm) = (bed.worker("amd", "platform=linux/amd64"), bed.worker("arm", "platform=linux/arm64"));
    let half = handoffs.div_ceil(2);
    let yaml = format!(
        r#"
id: r
state:
  initial: amd
  states:
    - id: amd
      execution_needs: {{ platform: linux/amd64 }}
      op: work
      inputs: {{ give: "${{{{ transition.payload == null ? 1 : transition.payload + 1 }}}}" }}
      transitions: [ {{ to: end, when: "${{{{ states.amd.outputs > {half} }}}}" }}, {{ to: arm, payload: "${{{{ states.amd.outputs }}}}" }} ]
    - id: arm
      execution_needs: {{ platform: linux/arm64 }}
      op: work
      transitions: [ {{ to: amd, payload: "${{{{ transition.payload }}}}" }} ]
    - {{ id: end, op: wait_for_signal, inputs: {{ name: counted }} }}
"#
    );
    let job = bed.submit_with(&yaml, |_, job| job.payload = text(0)).await;
    let store = bed.harness.recipes();
    let client = async {
        let mut conflicts = 0;
        for counter in 1..=updates {
            loop {
                let present = store.recipe_job(&Namespace::default(), job).await.unwrap().unwrap();
                assert_eq!(own(&present.payload), text(counter - 1), "some byte is another one");
                let value = present.payload.replacen(
                    &format!("\"counter\":{} ", counter - 1),
                    &format!("\"counter\":{counter} "),
                    1,
                );
                let update = PayloadUpdate { value, expected_revision: present.payload_revision };
                match store.set_payload(&Namespace::default(), job, &update).await.unwrap() {
                    PayloadSet::Set { revision } => {
                        assert_eq!(revision, present.payload_revision + 1);
                        break;
                    }
                    PayloadSet::Conflict { .. } => conflicts += 1,
                    other => panic!("{other:?}"),
                }
            }
            // A client that writes without a pause would win every time: then a handoff counts as rejected.
            pass(Duration::from_millis(10)).await;
        }
        conflicts
    };
    let workers = async {
        let mut left = 0;
        loop {
            let view = bed.view(job).await;
            if view.state == JobState::Pending && bed.log(job).await.len() as u32 > 2 * half {
                return left;
            }
            let mut moved = false;
            for worker in [&amd, &arm] {
                let Some(turn) = bed.turn(worker).await else { continue };
                moved = true;
                if turn.ended.is_none() {
                    // Five conflicts in a row: what was to be handed off is left to recovery, as it is written.
                    left += 1;
                    bed.recover(worker, job).await;
                }
            }
            if !moved {
                pass(Duration::from_millis(5)).await;
            }
        }
    };
    let (conflicts, left) = tokio::join!(client, workers);
    let payload = bed.payload(job).await;
    assert_eq!(own(&payload), text(updates));
    let handed = (amd.handoffs().len() + arm.handoffs().len()) as u32;
    println!(
        "{updates} updates beside {handed} handoffs: the client met {conflicts} conflicts, {left} handoffs were rejected"
    );
    assert!(handed >= handoffs, "{handed}");
    assert!(left * 10 <= handed, "{left} of {handed} handoffs were left to recovery");
    assert_eq!(bed.runs().len() as u32, 2 * half + 1, "each task once");
}
