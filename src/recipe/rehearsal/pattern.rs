//! Paths as a test file names them: with visits and attempts, or without.

/// Which occurrences a text names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    id: String,
    visit: Option<String>,
    attempt: Option<String>,
}

impl Pattern {
    /// Reads `work/poll#3/fetch!2`. A part without a visit or an attempt means any.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<Part> = text.split('/').map(part).collect();
        let number = |n: &Option<String>| n.as_ref().is_none_or(|n| n.parse::<u32>().is_ok_and(|n| n > 0));
        let good = |part: &Part| !part.id.is_empty() && number(&part.visit) && number(&part.attempt);
        if parts.iter().all(good) {
            Ok(Self { parts })
        } else {
            Err(format!("{text:?} is no path of a task: write it like work/poll#3/fetch!2"))
        }
    }

    /// Whether it names this occurrence.
    pub(super) fn fits(&self, path: &str) -> bool {
        let mut found = path.split('/').map(part);
        let fits = |wanted: &Part, found: Part| {
            wanted.id == found.id
                && (wanted.visit.is_none() || wanted.visit == found.visit)
                && (wanted.attempt.is_none() || wanted.attempt == found.attempt)
        };
        self.parts.iter().all(|wanted| found.next().is_some_and(|found| fits(wanted, found)))
            && found.next().is_none()
    }
}

fn part(text: &str) -> Part {
    let (rest, attempt) = text.rsplit_once('!').map_or((text, None), |(rest, n)| (rest, Some(n)));
    let (id, visit) = rest.rsplit_once('#').map_or((rest, None), |(id, n)| (id, Some(n)));
    Part { id: id.to_owned(), visit: visit.map(str::to_owned), attempt: attempt.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_numbers_is_that_of_every_visit_and_attempt() {
        let fits = |pattern: &str, path: &str| Pattern::parse(pattern).unwrap().fits(path);
        assert!(fits("work/poll/fetch", "work/poll#3/fetch!2"));
        assert!(fits("work/poll#3/fetch", "work/poll#3/fetch!2"));
        assert!(fits(".", ".!2"));
        for (pattern, path) in [
            ("work/poll#2/fetch", "work/poll#3/fetch!2"),
            ("work/poll/fetch!1", "work/poll#3/fetch!2"),
            ("work/poll", "work/poll#3/fetch!2"),
            ("work/poll/fetch/more", "work/poll#3/fetch!2"),
            ("fetch", "work/poll#3/fetch!2"),
        ] {
            assert!(!fits(pattern, path), "{pattern} {path}");
        }
        for bad in ["", "/", "a//b", "a!", "a#0", "a!x"] {
            Pattern::parse(bad).expect_err(bad);
        }
    }
}
