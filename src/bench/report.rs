//! What came out: medians over the rounds, ratios within each round, for people and for programs.

use std::{fmt, time::Duration};

use serde::Serialize;

use super::{
    BenchError, BenchOptions,
    drain::{Drained, Setting},
    raw::RawDrain,
    stats::{Percentiles, median},
};

/// The figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// The server's version.
    pub postgres: String,
    /// Processors of this machine.
    pub processors: usize,
    /// Whether this program was built with optimisation.
    pub optimised: bool,
    /// Jobs of each batched drain.
    pub jobs: u32,
    /// Interleaved rounds.
    pub rounds: u32,
    /// The statements alone.
    pub raw: RawReport,
    /// The worker at each of its settings.
    pub settings: Vec<SettingReport>,
    /// The fastest of them.
    pub best: String,
    /// Its share of the raw statements' jobs a second.
    pub best_ratio_to_raw: f64,
    /// Pick-up by an idle worker, and the bare way beside it.
    pub pick_up: LatencyReport,
}

/// The statements alone, in batches of 500 on two connections.
#[derive(Debug, Clone, Serialize)]
pub struct RawReport {
    /// Median of the rounds.
    pub jobs_per_s: f64,
    /// Each round.
    pub rounds: Vec<f64>,
    /// Write-ahead log of one job, from claim to end; median of the rounds.
    pub wal_bytes_per_job: f64,
    /// The part of the renewals that left all indexes alone.
    pub hot_ratio: Option<f64>,
}

/// The worker at one setting.
#[derive(Debug, Clone, Serialize)]
pub struct SettingReport {
    /// `single` or `batched`, and the concurrency.
    pub name: String,
    /// Handlers at once.
    pub concurrency: u32,
    /// Most jobs in one claim.
    pub claim_batch: u32,
    /// Jobs of each drain.
    pub jobs: u32,
    /// Median of the rounds.
    pub jobs_per_s: f64,
    /// Each round.
    pub rounds: Vec<f64>,
    /// Share of the raw statements' jobs a second: the median of the rounds' ratios.
    pub ratio_to_raw: f64,
    /// From grant to end, by the database's clock: half of the jobs took no longer.
    pub lease_p50_ms: f64,
    /// 95 in a hundred took no longer.
    pub lease_p95_ms: f64,
    /// 99 in a hundred took no longer.
    pub lease_p99_ms: f64,
    /// Write-ahead log of one job, from claim to end; median of the rounds.
    pub wal_bytes_per_job: f64,
    /// The part of the renewals that left all indexes alone.
    pub hot_ratio: Option<f64>,
}

/// Submit to start.
#[derive(Debug, Clone, Serialize)]
pub struct LatencyReport {
    /// Call of submit → handler entered.
    pub worker: Percentiles,
    /// Call of submit → NOTIFY → answer of the claim statement.
    pub bare: Percentiles,
    /// The worker's half over the bare half: the median of the rounds' ratios.
    pub p50_ratio: f64,
}

/// Measurements as they come in.
pub(super) struct Gathering {
    postgres: String,
    jobs: u32,
    rounds: u32,
    raw: Vec<RawDrain>,
    settings: Vec<(Setting, Vec<Drained>)>,
    bare: Vec<Vec<Duration>>,
    pick_up: Vec<Vec<Duration>>,
}

impl Gathering {
    pub(super) fn new(postgres: String, options: &BenchOptions) -> Self {
        Self {
            postgres,
            jobs: options.jobs,
            rounds: options.rounds,
            raw: Vec::new(),
            settings: Vec::new(),
            bare: Vec::new(),
            pick_up: Vec::new(),
        }
    }

    pub(super) fn raw(&mut self, drain: RawDrain) {
        self.raw.push(drain);
    }

    pub(super) fn drained(&mut self, setting: &Setting, drain: Drained) {
        match self.settings.iter_mut().find(|(known, _)| known == setting) {
            Some((_, drains)) => drains.push(drain),
            None => self.settings.push((setting.clone(), vec![drain])),
        }
    }

    pub(super) fn bare(&mut self, times: Vec<Duration>) {
        self.bare.push(times);
    }

    pub(super) fn pick_up(&mut self, times: Vec<Duration>) {
        self.pick_up.push(times);
    }

    pub(super) fn finish(self) -> Result<BenchReport, BenchError> {
        let raw_rates: Vec<f64> = self.raw.iter().map(|d| rate(d.jobs, d.took)).collect();
        let raw = RawReport {
            jobs_per_s: middle(&raw_rates)?,
            wal_bytes_per_job: middle(&per_job(self.raw.iter().map(|d| (d.effort.wal_bytes, d.jobs))))?,
            hot_ratio: median(&self.raw.iter().filter_map(|d| d.effort.hot_ratio).collect::<Vec<_>>()),
            rounds: raw_rates.clone(),
        };
        let settings = self
            .settings
            .iter()
            .map(|(setting, drains)| setting_report(setting, drains, &raw_rates))
            .collect::<Result<Vec<_>, _>>()?;
        let best = settings
            .iter()
            .max_by(|a, b| a.ratio_to_raw.total_cmp(&b.ratio_to_raw))
            .ok_or_else(|| BenchError::Invalidated("no setting was measured".to_owned()))?;
        let (best, best_ratio_to_raw) = (best.name.clone(), best.ratio_to_raw);
        Ok(BenchReport {
            postgres: self.postgres,
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            optimised: !cfg!(debug_assertions),
            jobs: self.jobs,
            rounds: self.rounds,
            raw,
            settings,
            best,
            best_ratio_to_raw,
            pick_up: latency_report(&self.pick_up, &self.bare)?,
        })
    }
}

fn setting_report(
    setting: &Setting,
    drains: &[Drained],
    raw_rates: &[f64],
) -> Result<SettingReport, BenchError> {
    let rates: Vec<f64> = drains.iter().map(|d| rate(d.jobs, d.took)).collect();
    let ratios: Vec<f64> = rates.iter().zip(raw_rates).map(|(ours, raw)| ours / raw).collect();
    let lease = |which: usize| middle(&drains.iter().map(|d| d.lease_ms[which]).collect::<Vec<_>>());
    Ok(SettingReport {
        name: setting.name.clone(),
        concurrency: setting.concurrency,
        claim_batch: setting.claim_batch,
        jobs: setting.jobs,
        jobs_per_s: middle(&rates)?,
        ratio_to_raw: middle(&ratios)?,
        rounds: rates,
        lease_p50_ms: lease(0)?,
        lease_p95_ms: lease(1)?,
        lease_p99_ms: lease(2)?,
        wal_bytes_per_job: middle(&per_job(drains.iter().map(|d| (d.effort.wal_bytes, d.jobs))))?,
        hot_ratio: median(&drains.iter().filter_map(|d| d.effort.hot_ratio).collect::<Vec<_>>()),
    })
}

fn latency_report(worker: &[Vec<Duration>], bare: &[Vec<Duration>]) -> Result<LatencyReport, BenchError> {
    let all = |rounds: &[Vec<Duration>]| {
        Percentiles::of(rounds.concat())
            .ok_or_else(|| BenchError::Invalidated("no latency was measured".to_owned()))
    };
    let halves = |rounds: &[Vec<Duration>]| -> Vec<f64> {
        rounds.iter().filter_map(|round| Percentiles::of(round.clone())).map(|p| p.p50_ms).collect()
    };
    let ratios: Vec<f64> = halves(worker).iter().zip(halves(bare)).map(|(ours, bare)| ours / bare).collect();
    Ok(LatencyReport { worker: all(worker)?, bare: all(bare)?, p50_ratio: middle(&ratios)? })
}

fn rate(jobs: u32, took: Duration) -> f64 {
    f64::from(jobs) / took.as_secs_f64().max(f64::EPSILON)
}

fn per_job(efforts: impl Iterator<Item = (i64, u32)>) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    efforts.map(|(bytes, jobs)| bytes as f64 / f64::from(jobs)).collect()
}

fn middle(values: &[f64]) -> Result<f64, BenchError> {
    median(values).ok_or_else(|| BenchError::Invalidated("nothing was measured".to_owned()))
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "PostgreSQL {}, {} processors, {} jobs a drain, {} rounds{}",
            self.postgres,
            self.processors,
            self.jobs,
            self.rounds,
            if self.optimised { "" } else { " (built without optimisation: build with --release)" }
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<16} {:>10} {:>8} {:>12} {:>12} {:>12} {:>10} {:>6}",
            "drain", "jobs/s", "of raw", "lease p50", "lease p95", "lease p99", "WAL B/job", "HOT"
        )?;
        writeln!(
            f,
            "{:<16} {:>10.0} {:>8} {:>12} {:>12} {:>12} {:>10.0} {:>6}",
            "raw statements",
            self.raw.jobs_per_s,
            "100 %",
            "",
            "",
            "",
            self.raw.wal_bytes_per_job,
            percent(self.raw.hot_ratio)
        )?;
        for s in &self.settings {
            writeln!(
                f,
                "{:<16} {:>10.0} {:>8} {:>9.1} ms {:>9.1} ms {:>9.1} ms {:>10.0} {:>6}",
                s.name,
                s.jobs_per_s,
                percent(Some(s.ratio_to_raw)),
                s.lease_p50_ms,
                s.lease_p95_ms,
                s.lease_p99_ms,
                s.wal_bytes_per_job,
                percent(s.hot_ratio)
            )?;
        }
        writeln!(f)?;
        writeln!(f, "{:<30} {:>10} {:>10} {:>10}", "pick-up", "p50", "p95", "p99")?;
        for (name, times) in [
            ("submit, NOTIFY, claim (bare)", &self.pick_up.bare),
            ("submit, handler entered", &self.pick_up.worker),
        ] {
            writeln!(
                f,
                "{name:<30} {:>7.2} ms {:>7.2} ms {:>7.2} ms",
                times.p50_ms, times.p95_ms, times.p99_ms
            )?;
        }
        writeln!(f)?;
        write!(
            f,
            "best: {} at {} of the raw statements; pick-up p50 at {:.2} × bare",
            self.best,
            percent(Some(self.best_ratio_to_raw)),
            self.pick_up.p50_ratio
        )
    }
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::server::Effort;

    fn took(seconds: u64, jobs: u32) -> (RawDrain, Drained) {
        let effort = Effort { wal_bytes: i64::from(jobs) * 700, hot_ratio: Some(1.0) };
        let took = Duration::from_secs(seconds);
        (RawDrain { jobs, took, effort }, Drained { jobs, took, effort, lease_ms: [1.0, 2.0, 3.0] })
    }

    #[test]
    fn a_ratio_is_taken_within_its_round_so_that_a_slow_machine_is_slow_for_both() {
        let options = BenchOptions {
            jobs: 1000,
            rounds: 3,
            latency_jobs: 3,
            single: vec![1],
            batched: vec![500],
            single_jobs: 1000,
        };
        let [single, batched] = Setting::of(&options).try_into().expect("two settings");
        let mut gathering = Gathering::new("15".to_owned(), &options);
        // The machine halves its speed in the second round and recovers in the third.
        for slow in [1, 2, 1] {
            gathering.raw(took(slow, 1000).0);
            gathering.drained(&single, took(slow * 10, 1000).1);
            gathering.drained(&batched, took(slow * 2, 1000).1);
            gathering.bare(vec![Duration::from_millis(2 * slow)]);
            gathering.pick_up(vec![Duration::from_millis(3 * slow)]);
        }
        let report = gathering.finish().expect("everything was measured");
        assert!((report.best_ratio_to_raw - 0.5).abs() < 1e-9 && report.best == "batched 500", "{report}");
        assert!((report.settings[0].ratio_to_raw - 0.1).abs() < 1e-9);
        assert!((report.pick_up.p50_ratio - 1.5).abs() < 1e-9);
        assert!((report.raw.wal_bytes_per_job - 700.0).abs() < 1e-9);
        let text = report.to_string();
        assert!(
            text.contains("batched 500") && text.contains("50 %") && text.contains("1.50 × bare"),
            "{text}"
        );
    }

    #[test]
    fn nothing_measured_is_no_report() {
        let options = BenchOptions {
            jobs: 1,
            rounds: 1,
            latency_jobs: 1,
            single: vec![],
            batched: vec![],
            single_jobs: 1,
        };
        assert!(Gathering::new(String::new(), &options).finish().is_err());
    }
}
