//! Situations that an exploration must have met, or it has proved nothing about them.

use crate::{
    database::repeats,
    names::{Job, Worker},
    scope::{Cancels, Role, Scope},
    state::{Answer, Phase, Place, Process, Request, Stage, State, Token, View},
};

/// Something that must happen in some reachable state.
#[derive(Debug)]
pub struct Situation {
    /// What happens.
    pub name: &'static str,
    /// Whether it can happen in this scope.
    pub expected: fn(&Scope) -> bool,
    /// Whether it happens in this state.
    pub holds: fn(&State) -> bool,
}

const fn situation(name: &'static str, expected: fn(&Scope) -> bool, holds: fn(&State) -> bool) -> Situation {
    Situation { name, expected, holds }
}

/// Every situation.
pub const SITUATIONS: [Situation; 18] = [
    situation("every job ended", |_| true, |s| s.jobs.iter().all(|row| row.place == Place::Ended)),
    situation(
        "a replay answered with the recorded grant",
        |_| true,
        |s| {
            s.permits.iter().flatten().any(|permit| {
                matches!(permit.phase, Phase::Asking { repeat: true, .. })
                && permit.call.is_some_and(|call| {
                    matches!(call.stage, Stage::Replied(Answer::Granted(jobs)) if !jobs.is_empty())
                })
            })
        },
    ),
    situation(
        "a claim whose snapshot misses a QUEUED job",
        |scope| scope.jobs > 1,
        |s| {
            s.callers().any(|(_, call)| {
                matches!(call.request, Request::Claim { .. })
                    && matches!(call.stage, Stage::Snapped(View { jobs, .. })
                        if !s.jobs_where(|place| *place == Place::Queued).without(jobs).is_empty())
            })
        },
    ),
    situation(
        "a lease granted to a process that is dead",
        |scope| scope.restarts && scope.late > 0,
        |s| {
            Job::ALL.into_iter().any(|job| {
                s.lease(job).is_some_and(|lease| !lease.owner.alive)
                    && s.permits.iter().flatten().all(|permit| permit.phase == Phase::Free)
            })
        },
    ),
    situation(
        "a late renewal of a dead process",
        |scope| scope.restarts && scope.late > 0,
        |s| s.late.iter().flatten().any(|call| !call.from.alive && matches!(call.request, Request::Renew(_))),
    ),
    situation(
        "a mutation that waits for a row",
        |scope| scope.late > 0,
        |s| {
            s.callers().any(|(who, call)| match call.request {
                Request::Renew(grant) | Request::End(grant, _) => {
                    matches!(call.stage, Stage::Sent | Stage::Snapped(_))
                        && s.held_by_others(Some(who)).has(grant.job)
                }
                _ => false,
            })
        },
    ),
    situation(
        "an end recorded, its answer lost",
        |scope| !scope.tidy,
        |s| {
            s.permits.iter().flatten().any(|permit| {
                matches!(permit.phase, Phase::Ending { grant, .. } if grant.token == Token::Ended)
                    && permit.call.is_some_and(|call| call.stage == Stage::Sent)
            })
        },
    ),
    situation(
        "a recovered lease beside the old container",
        |scope| scope.restarts,
        |s| {
            s.permits.iter().flatten().any(
                |permit| matches!(permit.phase, Phase::Cleaning { grant, .. } if s.job(grant.job).orphan),
            )
        },
    ),
    situation(
        "a permit awaiting reconciliation of a live lease",
        |_| true,
        |s| {
            s.permits.iter().flatten().any(|permit| {
            matches!(permit.phase, Phase::Reconciling { grant } if s.lease(grant.job).is_some_and(|l| l.left > 0))
        })
        },
    ),
    situation(
        "a stuck permit",
        |_| true,
        |s| s.permits.iter().flatten().any(|permit| matches!(permit.phase, Phase::Stuck { .. })),
    ),
    situation(
        "a cancel requested while RUNNING",
        |scope| scope.cancel != Cancels::No,
        |s| s.jobs.iter().any(|row| row.cancel),
    ),
    situation(
        "one worker that runs both jobs",
        |scope| scope.jobs > 1 && scope.roles[0] == [Role::Any; 2],
        |s| s.permits.iter().any(|permits| permits.iter().all(|p| matches!(p.phase, Phase::Running { .. }))),
    ),
    situation(
        "two workers that run a job each",
        |scope| scope.jobs > 1,
        |s| s.permits.iter().all(|permits| permits.iter().any(|p| matches!(p.phase, Phase::Running { .. }))),
    ),
    situation(
        "a blocked workload whose job another worker recovered",
        |scope| scope.blocks,
        |s| {
            Worker::ALL.into_iter().any(|worker| {
                s.permits[worker.ix()].iter().any(|permit| {
                    matches!(permit.phase, Phase::Stuck { blocked: true, grant, .. }
                    if s.lease(grant.job).is_some_and(|l| l.owner != Process { worker, alive: true }))
                })
            })
        },
    ),
    situation(
        "an extension that is committed after the old expiry",
        |_| true,
        |s| {
            s.callers().any(|(_, call)| match (call.request, call.stage) {
                (Request::Renew(grant), Stage::Written(_)) => s.lease(grant.job).is_some_and(|l| l.left == 0),
                _ => false,
            })
        },
    ),
    situation(
        "a recovery that skips a row which a mutation holds",
        |_| true,
        |s| {
            s.callers().any(|(who, call)| match (call.request, call.stage) {
                (Request::Recover { .. }, Stage::Snapped(view)) => {
                    view.jobs.meets(s.held_by_others(Some(who)))
                }
                _ => false,
            })
        },
    ),
    situation(
        "a replay that waits for the commit of the first copy",
        |scope| scope.late > 0,
        |s| {
            s.callers().any(|(who, call)| {
                repeats(call.request)
                    && !matches!(call.stage, Stage::Replied(_))
                    && s.callers().any(|(other, first)| {
                        other != who
                            && first.request.command() == call.request.command()
                            && matches!(first.stage, Stage::Written(_))
                    })
            })
        },
    ),
    situation(
        "one process that runs a job and recovers another",
        |scope| scope.jobs > 1,
        |s| {
            s.permits.iter().any(|permits| {
                let has = |is: fn(&Phase) -> bool| permits.iter().any(|permit| is(&permit.phase));
                has(|phase| matches!(phase, Phase::Running { .. }))
                    && has(|phase| matches!(phase, Phase::Cleaning { .. }))
            })
        },
    ),
];
