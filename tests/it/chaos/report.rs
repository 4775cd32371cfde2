//! What a run found, as text for people, and as facts for the tests.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use super::{
    checker::{Finding, check},
    history::{History, Kind, Outcome},
    injectors::Fault,
    run::Settings,
};

pub struct Report {
    settings: Settings,
    pub findings: Vec<Finding>,
    pub tally: BTreeMap<Fault, (u32, u32)>,
    pub jobs: BTreeMap<Kind, [usize; 3]>,
    /// How often leases ended in which way.
    hows: BTreeMap<String, usize>,
    /// Final failures by code, scripted ones left out.
    pub unscripted: BTreeMap<String, usize>,
    exits: Vec<(String, Option<i32>)>,
    unasked: u32,
    stuck: usize,
    took: Duration,
    pub left: usize,
    probes: usize,
    logs: Option<PathBuf>,
}

impl Report {
    pub fn new(
        settings: Settings,
        history: History,
        tally: BTreeMap<Fault, (u32, u32)>,
        exits: Vec<(String, Option<i32>)>,
        unasked: u32,
        stuck: usize,
        took: Duration,
    ) -> Self {
        let mut jobs: BTreeMap<Kind, [usize; 3]> = BTreeMap::new();
        for accepted in &history.accepted {
            let place = match accepted.outcome {
                Outcome::Completed => 0,
                Outcome::Failed { .. } => 1,
                Outcome::Canceled => 2,
            };
            jobs.entry(accepted.kind).or_default()[place] += 1;
        }
        let mut hows: BTreeMap<String, usize> = BTreeMap::new();
        for past in &history.past {
            let code = past.code.as_deref().filter(|code| code.parse::<u32>().is_err()).unwrap_or("");
            *hows.entry(format!("{} {code}", past.how).trim_end().to_owned()).or_default() += 1;
        }
        let mut unscripted: BTreeMap<String, usize> = BTreeMap::new();
        for end in history.ends.iter().filter(|end| end.state == "FAILED") {
            if let Some(code @ ("crash_loop" | "lease_lost")) = end.code.as_deref() {
                *unscripted.entry(code.to_owned()).or_default() += 1;
            }
        }
        let (findings, left) = (check(&history), history.left.len());
        let (probes, logs) = (0, None);
        Self {
            settings,
            findings,
            tally,
            jobs,
            hows,
            unscripted,
            exits,
            unasked,
            stuck,
            took,
            left,
            probes,
            logs,
        }
    }

    pub fn with(mut self, probes: usize, logs: Option<PathBuf>) -> Self {
        (self.probes, self.logs) = (probes, logs);
        self
    }

    pub fn seed(&self) -> u64 {
        self.settings.seed
    }

    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.violations.is_empty()) && self.unscripted.is_empty()
    }

    /// Jobs in all, and those of one kind.
    pub fn count(&self, kind: Option<Kind>) -> usize {
        self.jobs
            .iter()
            .filter(|(of, _)| kind.is_none_or(|kind| kind == **of))
            .flat_map(|(_, jobs)| jobs)
            .sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        writeln!(
            f,
            "chaos: seed {}, {:?} of faults planned, {:?} played; {} workers with handlers, {} of containers and probes, {} nodes; lease 5 s, renewed each second",
            settings.seed, settings.length, self.took, settings.handlers, settings.runners, settings.engines
        )?;
        writeln!(f, "\njobs by script            completed  failed with code  cancelled")?;
        for (kind, [completed, failed, canceled]) in &self.jobs {
            writeln!(f, "  {:<22} {completed:>10} {failed:>17} {canceled:>10}", format!("{kind:?}"))?;
        }
        writeln!(
            f,
            "  {} in all, {} not ended, {} containers left on the engines",
            self.count(None),
            self.stuck,
            self.left
        )?;
        writeln!(
            f,
            "  final failures with code lease_lost or crash_loop: {}",
            self.unscripted.values().sum::<usize>()
        )?;
        writeln!(f, "\nfaults                                             hits  tries")?;
        for (fault, (tries, hits)) in &self.tally {
            writeln!(f, "  {:<46} {hits:>6} {tries:>6}", fault.name())?;
        }
        let hows: Vec<String> = self.hows.iter().map(|(how, count)| format!("{how} {count}")).collect();
        writeln!(f, "\nleases ended: {}", hows.join(", "))?;
        let exits: Vec<String> = self
            .exits
            .iter()
            .filter(|(_, code)| *code != Some(0))
            .map(|(name, code)| format!("{name}: {code:?}"))
            .collect();
        writeln!(f, "probes answered: {}", self.probes)?;
        writeln!(
            f,
            "ended by themselves, otherwise than refused at their start: {}; drains in the end that were not clean: {exits:?}",
            self.unasked
        )?;
        writeln!(f, "\ninvariants")?;
        for finding in &self.findings {
            let looked: Vec<String> =
                finding.looked_at.iter().map(|(what, count)| format!("{count} {what}")).collect();
            writeln!(
                f,
                "  {:<4} {}: {} violations in {}",
                finding.invariant,
                finding.says,
                finding.violations.len(),
                looked.join(", ")
            )?;
            for (what, count) in finding.exceptions.iter().filter(|(_, count)| *count > 0) {
                writeln!(f, "         named exception: {count} {what}")?;
            }
            for violation in finding.violations.iter().take(10) {
                writeln!(f, "         {violation}")?;
            }
        }
        if let Some(logs) = &self.logs {
            writeln!(f, "logs: {}", logs.display())?;
        }
        Ok(())
    }
}
