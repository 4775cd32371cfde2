//! The life of one lease as its holder sees it: `(phase, event) → (phase, effect)`, pure and total.
//!
//! ```text
//!  Confirming ──Held──▶ Running ──stop──▶ Stopping(why) ──ended──▶ Reporting ──confirmed──▶ Closed (free)
//!      │ nothing starts     │                  │                      │ not confirmed in time
//!      │ before this        └──────ended───────┼──────▶ Reporting     ▼
//!      └─ not live ▶ Closed (free)             └─ lease lost, ended ▶ Closed (to be reconciled)
//! ```
//!
//! The LeaseActor is the shell: it turns answers and timers into events and performs the effects. It never
//! decides anything that this file could decide.

/// Why a workload must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// Somebody asked for the job to be cancelled.
    Canceled,
    /// It ran longer than it may.
    TimedOut,
    /// The lease is lost, or could not be renewed in time: nothing may be reported any more.
    LeaseLost,
    /// The worker shuts down; the job is given back.
    Draining,
    /// The lease goes to another process, which goes on from what is recorded.
    Exported,
}

/// Where a holder stands with its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Granted; the immediate renewal is not confirmed yet, so nothing runs.
    Confirming,
    /// The workload runs and the lease is renewed.
    Running,
    /// The workload was told to stop and has not ended yet. Unless the lease is lost, renewals go on.
    Stopping(StopReason),
    /// The workload has ended (or never began), and the store is told.
    Reporting(Report),
    /// Nothing more is done under this lease.
    Closed,
}

/// What happens to a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A renewal was confirmed.
    Held,
    /// A renewal was confirmed, and it says that a cancel was requested.
    CancelSeen,
    /// The store says that the lease is not live.
    NotLive,
    /// The job has run longer than it may.
    TimedOut,
    /// No renewal was confirmed in time: the work must begin to stop.
    LeaseRunsOut,
    /// The local deadline: the work must be dead.
    Deadline,
    /// The worker gives its jobs back.
    Drain,
    /// Somebody asks for the lease, to run it elsewhere.
    Export,
    /// The work was told to stop and has not done so in its time.
    StopGraceOver,
    /// The work has surely ended.
    WorkEnded(WorkEnd),
    /// The store answered the report, one way or the other.
    ReportAnswered,
    /// The store surely refused the report and would refuse it again.
    ReportRefused,
    /// The report has been repeated for a whole lease.
    ReportGivenUp,
}

/// How a workload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkEnd {
    /// It succeeded or failed by itself: that is reported whatever it was being stopped for.
    ByItself,
    /// It ended because it was told to, or was ended by force.
    Stopped,
}

/// What the store is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Report {
    /// The workload's own outcome.
    Outcome,
    /// A requested cancel was carried out.
    Cancel,
    /// It failed: it ran longer than it may.
    TimedOut,
    /// It failed: it stopped although nobody asked.
    StoppedUnasked,
    /// The job is given back for a retry.
    Release,
    /// It failed: its first report was refused.
    Refused,
}

/// What the shell must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing.
    None,
    /// Start the workload.
    Start,
    /// Ask the workload to stop.
    Stop(StopReason),
    /// End the workload by force, as one whose lease is lost.
    KillLost,
    /// End the workload by force: it had its time.
    Kill,
    /// Tell the store, again and again under one command id.
    Report(Report),
    /// Ask for no more renewals; go on reporting.
    StopRenewing,
    /// The permit is free.
    Free,
    /// The permit awaits reconciliation.
    Reconcile,
    /// Nothing runs here (any more): the lease is given to who asked for it, and the permit awaits reconciliation.
    Export,
}

/// An event that cannot happen in that phase: a defect of the shell, never of the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} cannot happen in {phase:?}")]
pub struct Illegal {
    /// The phase.
    pub phase: Phase,
    /// The event.
    pub event: Event,
}

impl Phase {
    /// The next phase, and what to do on the way.
    ///
    /// # Errors
    /// [`Illegal`] for an event that cannot happen in this phase.
    pub fn on(self, event: Event) -> Result<(Self, Effect), Illegal> {
        use Event as E;
        let illegal = Err(Illegal { phase: self, event });
        match self {
            Self::Confirming => Ok(match event {
                E::Held => (Self::Running, Effect::Start),
                E::CancelSeen => Self::report(Report::Cancel),
                E::NotLive => (Self::Closed, Effect::Free),
                E::LeaseRunsOut | E::Deadline => (Self::Closed, Effect::Reconcile),
                E::Drain => Self::report(Report::Release),
                E::Export => (Self::Closed, Effect::Export),
                _ => return illegal,
            }),
            Self::Running => Ok(match event {
                E::Held => (self, Effect::None),
                E::CancelSeen => Self::stop(StopReason::Canceled),
                E::TimedOut => Self::stop(StopReason::TimedOut),
                E::LeaseRunsOut => Self::stop(StopReason::LeaseLost),
                E::Drain => Self::stop(StopReason::Draining),
                E::Export => Self::stop(StopReason::Exported),
                E::NotLive | E::Deadline => (Self::Stopping(StopReason::LeaseLost), Effect::KillLost),
                E::WorkEnded(WorkEnd::ByItself) => Self::report(Report::Outcome),
                E::WorkEnded(WorkEnd::Stopped) => Self::report(Report::StoppedUnasked),
                _ => return illegal,
            }),
            // Lost is lost: a late confirmation revives nothing, and nothing is reported any more.
            Self::Stopping(StopReason::LeaseLost) => Ok(match event {
                E::Held | E::CancelSeen | E::TimedOut | E::LeaseRunsOut | E::Drain | E::Export => {
                    (self, Effect::None)
                }
                E::NotLive | E::Deadline | E::StopGraceOver => (self, Effect::KillLost),
                E::WorkEnded(_) => (Self::Closed, Effect::Reconcile),
                _ => return illegal,
            }),
            Self::Stopping(why) => Ok(match event {
                // It stops already; for an export the reason must be no other.
                E::Held | E::TimedOut | E::Export => (self, Effect::None),
                // Not given back for a retry, then, nor to anybody else.
                E::CancelSeen if matches!(why, StopReason::Draining | StopReason::Exported) => {
                    (Self::Stopping(StopReason::Canceled), Effect::None)
                }
                E::CancelSeen => (self, Effect::None),
                // The reason stands, but a drain may leave less time.
                E::Drain => Self::stop(why),
                E::LeaseRunsOut => Self::stop(StopReason::LeaseLost),
                E::NotLive | E::Deadline => (Self::Stopping(StopReason::LeaseLost), Effect::KillLost),
                E::StopGraceOver => (self, Effect::Kill),
                E::WorkEnded(WorkEnd::ByItself) => Self::report(Report::Outcome),
                E::WorkEnded(WorkEnd::Stopped) => match why {
                    StopReason::Canceled => Self::report(Report::Cancel),
                    StopReason::TimedOut => Self::report(Report::TimedOut),
                    StopReason::Draining | StopReason::LeaseLost => Self::report(Report::Release),
                    StopReason::Exported => (Self::Closed, Effect::Export),
                },
                _ => return illegal,
            }),
            Self::Reporting(report) => Ok(match event {
                E::Held
                | E::CancelSeen
                | E::TimedOut
                | E::LeaseRunsOut
                | E::Drain
                | E::Export
                | E::StopGraceOver => (self, Effect::None),
                // Usually our own report has just ended it, and its answer is still on the way.
                E::NotLive => (self, Effect::StopRenewing),
                E::Deadline | E::ReportGivenUp => (Self::Closed, Effect::Reconcile),
                E::ReportAnswered => (Self::Closed, Effect::Free),
                E::ReportRefused => match report {
                    Report::Outcome | Report::TimedOut | Report::StoppedUnasked => {
                        Self::report(Report::Refused)
                    }
                    Report::Cancel | Report::Release | Report::Refused => (Self::Closed, Effect::Reconcile),
                },
                E::WorkEnded(_) => return illegal,
            }),
            Self::Closed => illegal,
        }
    }

    fn stop(why: StopReason) -> (Self, Effect) {
        (Self::Stopping(why), Effect::Stop(why))
    }

    fn report(what: Report) -> (Self, Effect) {
        (Self::Reporting(what), Effect::Report(what))
    }

    /// Whether the work may be running in this phase.
    #[must_use]
    pub fn has_work(self) -> bool {
        matches!(self, Self::Running | Self::Stopping(_))
    }

    /// Whether renewals are still asked for in this phase.
    #[must_use]
    pub fn renews(self) -> bool {
        !matches!(self, Self::Stopping(StopReason::LeaseLost) | Self::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS: [StopReason; 5] = [
        StopReason::Canceled,
        StopReason::TimedOut,
        StopReason::LeaseLost,
        StopReason::Draining,
        StopReason::Exported,
    ];
    const REPORTS: [Report; 6] = [
        Report::Outcome,
        Report::Cancel,
        Report::TimedOut,
        Report::StoppedUnasked,
        Report::Release,
        Report::Refused,
    ];
    const EVENTS: [Event; 14] = [
        Event::Held,
        Event::CancelSeen,
        Event::NotLive,
        Event::TimedOut,
        Event::LeaseRunsOut,
        Event::Deadline,
        Event::Drain,
        Event::StopGraceOver,
        Event::WorkEnded(WorkEnd::ByItself),
        Event::WorkEnded(WorkEnd::Stopped),
        Event::ReportAnswered,
        Event::ReportRefused,
        Event::ReportGivenUp,
        Event::Export,
    ];

    fn phases() -> Vec<Phase> {
        let mut phases = vec![Phase::Confirming, Phase::Running, Phase::Closed];
        phases.extend(REASONS.map(Phase::Stopping));
        phases.extend(REPORTS.map(Phase::Reporting));
        phases
    }

    fn all() -> impl Iterator<Item = (Phase, Event, Result<(Phase, Effect), Illegal>)> {
        phases().into_iter().flat_map(|p| EVENTS.into_iter().map(move |e| (p, e, p.on(e))))
    }

    /// The whole table, one row a phase, one column an event in the order of `EVENTS`. A changed rule shows
    /// here as a changed letter, so that none changes unseen.
    #[test]
    fn every_pair_of_phase_and_event_is_as_written_here() {
        let letter = |effect| match effect {
            Effect::None => '.',
            Effect::Start => 'S',
            Effect::Stop(_) => 's',
            Effect::KillLost => 'K',
            Effect::Kill => 'k',
            Effect::Report(_) => 'R',
            Effect::StopRenewing => 'n',
            Effect::Free => 'F',
            Effect::Reconcile => 'A',
            Effect::Export => 'E',
        };
        let table = [
            (Phase::Confirming, "SRF-AAR------E"),
            (Phase::Running, ".sKssKs-RR---s"),
            (Phase::Stopping(StopReason::Canceled), "..K.sKskRR---."),
            (Phase::Stopping(StopReason::TimedOut), "..K.sKskRR---."),
            (Phase::Stopping(StopReason::Draining), "..K.sKskRR---."),
            (Phase::Stopping(StopReason::Exported), "..K.sKskRE---."),
            (Phase::Stopping(StopReason::LeaseLost), "..K..K.KAA---."),
            (Phase::Reporting(Report::Outcome), "..n..A..--FRA."),
            (Phase::Reporting(Report::TimedOut), "..n..A..--FRA."),
            (Phase::Reporting(Report::StoppedUnasked), "..n..A..--FRA."),
            (Phase::Reporting(Report::Cancel), "..n..A..--FAA."),
            (Phase::Reporting(Report::Release), "..n..A..--FAA."),
            (Phase::Reporting(Report::Refused), "..n..A..--FAA."),
            (Phase::Closed, "--------------"),
        ];
        assert_eq!(table.len(), phases().len(), "a phase is missing");
        for (phase, expected) in table {
            let row: String =
                EVENTS.iter().map(|&e| phase.on(e).map_or('-', |(_, effect)| letter(effect))).collect();
            assert_eq!(row, expected, "{phase:?}");
        }
    }

    #[test]
    fn work_starts_only_on_a_confirmed_renewal_of_a_fresh_grant() {
        for (phase, event, next) in all() {
            if matches!(next, Ok((_, Effect::Start))) {
                assert_eq!((phase, event), (Phase::Confirming, Event::Held));
            }
        }
    }

    #[test]
    fn a_permit_is_freed_only_when_the_store_has_spoken() {
        for (phase, event, next) in all() {
            if matches!(next, Ok((_, Effect::Free))) {
                assert!(
                    (phase, event) == (Phase::Confirming, Event::NotLive)
                        || (matches!(phase, Phase::Reporting(_)) && event == Event::ReportAnswered),
                    "{phase:?} {event:?}"
                );
            }
        }
    }

    /// E10: what was given away is not reported, and nothing runs here when it is given away.
    #[test]
    fn a_lease_is_exported_only_while_nothing_runs_under_it() {
        for (phase, event, next) in all() {
            if let Ok((next, Effect::Export)) = next {
                assert!(
                    (phase, event) == (Phase::Confirming, Event::Export)
                        || (phase, event)
                            == (Phase::Stopping(StopReason::Exported), Event::WorkEnded(WorkEnd::Stopped)),
                    "{phase:?} {event:?}"
                );
                assert_eq!(next, Phase::Closed);
            }
        }
    }

    #[test]
    fn after_a_lost_lease_nothing_is_reported_and_only_the_end_of_the_work_closes_it() {
        let lost = Phase::Stopping(StopReason::LeaseLost);
        for event in EVENTS {
            let Ok((next, effect)) = lost.on(event) else { continue };
            assert!(!matches!(effect, Effect::Report(_) | Effect::Free | Effect::Start), "{event:?}");
            assert_eq!(next == Phase::Closed, matches!(event, Event::WorkEnded(_)), "{event:?}");
        }
    }

    #[test]
    fn running_work_is_never_left_without_an_end() {
        for (phase, event, next) in all() {
            if let Ok((next, effect)) = next
                && phase.has_work()
                && !next.has_work()
            {
                assert!(matches!(event, Event::WorkEnded(_)), "{phase:?} {event:?}");
                assert!(
                    matches!(effect, Effect::Report(_) | Effect::Reconcile | Effect::Export),
                    "{phase:?} {event:?}"
                );
            }
        }
    }

    /// CL-15, SH-03: a real outcome is reported also while the work is being stopped.
    #[test]
    fn an_outcome_of_its_own_stands_whatever_it_was_stopped_for() {
        for why in [StopReason::Canceled, StopReason::TimedOut, StopReason::Draining, StopReason::Exported] {
            let (next, _) = Phase::Stopping(why)
                .on(Event::WorkEnded(WorkEnd::ByItself))
                .expect("work may end by itself while it is being stopped");
            assert_eq!(next, Phase::Reporting(Report::Outcome));
        }
        assert_eq!(
            Phase::Confirming.on(Event::CancelSeen),
            Ok((Phase::Reporting(Report::Cancel), Effect::Report(Report::Cancel))),
            "cancelled before the first renewal: nothing starts"
        );
    }
}
