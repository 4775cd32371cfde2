//! HEARTBEAT probes against real listeners: what they contact, and above all what they do not.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    protocol::domain::{Failure, FailureKind, HeartbeatSpec},
    workload::{
        egress::Resolve,
        heartbeat::{HeartbeatProbe, ProbeReport},
    },
};
use serde_json::json;
use tokio::net::TcpListener;

use super::http_target::{Target, ok, redirect, status};

fn spec(url: &str) -> HeartbeatSpec {
    serde_json::from_value(json!({ "url": url })).unwrap()
}

fn prober(allowed: &[&Target]) -> HeartbeatProbe {
    let rules: Vec<_> = allowed.iter().map(|target| target.rule()).collect();
    HeartbeatProbe::new(&rules, None).unwrap()
}

async fn failure(probe: &HeartbeatProbe, spec: &HeartbeatSpec) -> Failure {
    match probe.probe(spec).await {
        Err(failure) => failure,
        Ok(report) => panic!("{} was healthy: {report:?}", spec.url),
    }
}

/// Everything that a failure or a report shows, for "is the secret in it?".
fn shown(result: &Result<ProbeReport, Failure>) -> String {
    format!("{result:?}")
}

#[tokio::test]
async fn a_probe_sends_what_it_was_told_and_reports_what_it_found() {
    let target = Target::http(|_| status("201 Created", "all is well")).await;
    let mut spec = spec(&target.url("/health?token=tok-secret"));
    spec.method = "POST".to_owned();
    spec.headers.insert("X-Check".to_owned(), "yes".to_owned());
    spec.body = Some("ping".to_owned());
    spec.expected_status = vec![200, 201];
    spec.body_match = Some("^all is w[e]ll$".to_owned());
    let report = prober(&[&target]).probe(&spec).await.unwrap();
    assert_eq!(report.status, 201);
    assert_eq!(report.redirects, 0);
    assert_eq!(report.url, target.url("/health?…"), "the query may be a secret");
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["elapsed_ms"].is_u64() && json.get("insecure_skip_tls_verify").is_none(), "{json}");
    let request = target.requests().remove(0);
    assert!(request.starts_with("POST /health?token=tok-secret HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("x-check: yes\r\n") && request.ends_with("\r\n\r\nping"), "{request}");
}

#[tokio::test]
async fn another_status_or_body_fails_the_job_itself() {
    let target = Target::http(|_| status("503 Service Unavailable", "back soon")).await;
    let probe = prober(&[&target]);
    let failed = failure(&probe, &spec(&target.url("/"))).await;
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::User, "unexpected_status"));
    assert!(failed.message.contains("answered 503") && failed.message.contains("200 to 299"), "{failed:?}");

    let mut spec = spec(&target.url("/"));
    spec.expected_status = vec![503];
    spec.body_match = Some("^ready$".to_owned());
    let failed = failure(&probe, &spec).await;
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::User, "body_mismatch"));
    assert!(!failed.message.contains("back soon"), "the body is not the submitter's to read: {failed:?}");
}

#[tokio::test]
async fn only_the_first_mebibyte_of_a_body_is_matched() {
    let mib = 1024 * 1024;
    let target = Target::http(move |request| {
        let before = if request.contains("/inside") { mib - 4 } else { mib - 3 };
        ok(&format!("{}DONE{}", "x".repeat(before), "y".repeat(mib)))
    })
    .await;
    let probe = prober(&[&target]);
    let mut inside = spec(&target.url("/inside"));
    inside.body_match = Some("DONE".to_owned());
    probe.probe(&inside).await.unwrap();
    let mut outside = spec(&target.url("/outside"));
    outside.body_match = Some("DONE".to_owned());
    assert_eq!(failure(&probe, &outside).await.code, "body_mismatch");
}

/// HB-01: where redirects would like to lead. Nothing may reach the listener, and the answer says so.
#[tokio::test]
async fn a_redirect_to_a_forbidden_place_is_refused_before_anything_is_sent() {
    let forbidden = Target::forbidden().await;
    let port = forbidden.address.port();
    let places = [
        format!("http://127.0.0.1:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("//127.0.0.1:{port}/"),
        format!("http://user:pw@127.0.0.1:{port}/v1.41/containers/json"),
        format!("https://127.0.0.1:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://[fd00:ec2::254]/latest/meta-data/".to_owned(),
        "http://10.0.0.1:2375/v1.41/containers/json".to_owned(),
        "file:///etc/passwd".to_owned(),
        "unix:///var/run/docker.sock".to_owned(),
        "ftp://example.com/".to_owned(),
        "http://".to_owned(),
    ];
    for place in places {
        let to = place.clone();
        let target = Target::http(move |_| redirect("302 Found", &to)).await;
        let mut spec = spec(&target.url("/"));
        spec.max_redirects = 10;
        let failed = failure(&prober(&[&target]), &spec).await;
        assert_eq!(
            (failed.kind, failed.code.as_str()),
            (FailureKind::User, "redirect_refused"),
            "{place}: {failed:?}"
        );
        assert!(
            failed.message.contains("redirect refused") && !failed.message.contains("user:pw"),
            "{place}: {failed:?}"
        );
        assert_eq!(target.connections(), 1, "{place}");
    }
    assert_eq!(forbidden.connections(), 0, "a forbidden listener was contacted");
}

/// HB-01: redirects are not followed unless the job says so, and then only so far.
#[tokio::test]
async fn chains_and_loops_of_redirects_end() {
    let chain = Target::http(|request| {
        let step: u32 = request[5..].split(' ').next().unwrap().parse().unwrap();
        redirect("302 Found", &format!("/{}", step + 1))
    })
    .await;
    let probe = prober(&[&chain]);
    let failed = failure(&probe, &spec(&chain.url("/0"))).await;
    assert_eq!(failed.code, "redirect_refused");
    assert!(failed.message.contains("at most 0"), "{failed:?}");
    assert_eq!(chain.connections(), 1, "no redirect is followed by default");

    let mut long = spec(&chain.url("/0"));
    long.max_redirects = 10;
    let failed = failure(&probe, &long).await;
    assert_eq!(failed.code, "redirect_refused");
    assert_eq!(chain.connections(), 1 + 11, "ten redirects and no more");

    let circle = Target::http(|request| {
        redirect("301 Moved Permanently", if request.starts_with("GET /a") { "/b" } else { "/a" })
    })
    .await;
    let mut spec = spec(&circle.url("/a"));
    spec.max_redirects = 10;
    let failed = failure(&prober(&[&circle]), &spec).await;
    assert!(failed.code == "redirect_refused" && failed.message.contains("a loop"), "{failed:?}");
    assert_eq!(circle.connections(), 2);
}

#[tokio::test]
async fn an_expected_redirect_status_is_healthy_and_is_not_followed() {
    let forbidden = Target::forbidden().await;
    let to = forbidden.url("/");
    let target = Target::http(move |_| redirect("302 Found", &to)).await;
    let mut spec = spec(&target.url("/"));
    spec.expected_status = vec![302];
    spec.max_redirects = 5;
    assert_eq!(prober(&[&target]).probe(&spec).await.unwrap().status, 302);
    assert_eq!(forbidden.connections(), 0);
}

/// HB-07: the way back to an allowed place does not excuse the forbidden one in between.
#[tokio::test]
async fn every_hop_is_checked_and_not_only_the_last() {
    let home = Target::http(|_| ok("home")).await;
    let back = home.url("/");
    let forbidden = Target::http(move |_| redirect("302 Found", &back)).await;
    let away = forbidden.url("/");
    let start = Target::http(move |_| redirect("302 Found", &away)).await;
    let mut spec = spec(&start.url("/"));
    spec.max_redirects = 5;
    let failed = failure(&prober(&[&start, &home]), &spec).await;
    assert_eq!(failed.code, "redirect_refused");
    assert_eq!((forbidden.connections(), home.connections()), (0, 0));
    // The same way with the place in between allowed works, so the refusal above is the policy's.
    let report = prober(&[&start, &forbidden, &home]).probe(&spec).await.unwrap();
    assert_eq!((report.redirects, report.url.as_str()), (2, home.url("/").as_str()));
}

/// HB-03: neither the first address nor a look at it touches the listener.
#[tokio::test]
async fn a_forbidden_first_address_is_never_contacted() {
    let forbidden = Target::forbidden().await;
    for method in ["GET", "HEAD", "OPTIONS"] {
        let mut spec = spec(&forbidden.url("/"));
        spec.method = method.to_owned();
        let failed = failure(&prober(&[]), &spec).await;
        assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::User, "egress_refused"));
        assert!(failed.message.contains("HEARTBEAT_ALLOW"), "the next step is named: {failed:?}");
    }
    assert_eq!(forbidden.connections(), 0);
}

/// A name whose answers change: allowed the first time, forbidden ever after.
#[derive(Clone)]
struct Rebinding {
    asked: Arc<AtomicUsize>,
    first: SocketAddr,
    later: SocketAddr,
}

#[async_trait::async_trait]
impl Resolve for Rebinding {
    async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![if self.asked.fetch_add(1, Ordering::SeqCst) == 0 { self.first } else { self.later }])
    }
}

/// HB-01, HB-03: what was checked is what is contacted, whatever the name says a moment later.
#[tokio::test]
async fn a_name_that_changes_its_answer_gains_nothing() {
    let good = Target::http(|_| ok("good")).await;
    let port = good.address.port();
    let forbidden = Target::http_at(&format!("127.0.0.2:{port}"), |_| ok("the secret")).await;
    let resolver = Rebinding { asked: Arc::default(), first: good.address, later: forbidden.address };
    let probe = prober(&[&good]).with_resolver(resolver.clone());
    let report = probe.probe(&spec(&format!("http://rebind.example:{port}/"))).await.unwrap();
    assert_eq!(report.url, format!("http://rebind.example:{port}/"));
    assert!(
        good.requests()[0].contains(&format!("host: rebind.example:{port}\r\n")),
        "{:?}",
        good.requests()
    );
    assert_eq!(resolver.asked.load(Ordering::SeqCst), 1, "the name was resolved again");
    // The second probe resolves anew, gets the other answer, and contacts nobody.
    let failed = failure(&probe, &spec(&format!("http://rebind.example:{port}/"))).await;
    assert_eq!(failed.code, "egress_refused");
    assert_eq!((good.connections(), forbidden.connections()), (1, 0));
}

#[tokio::test]
async fn credentials_stay_with_the_host_that_they_were_meant_for() {
    let other = Target::http(|_| ok("other")).await;
    let away = other.url("/there");
    let start = Target::http(move |request| {
        if request.starts_with("GET /first ") {
            redirect("302 Found", "/second")
        } else {
            redirect("302 Found", &away)
        }
    })
    .await;
    let mut spec = spec(&format!("http://alice:url-secret@{}/first", start.address));
    for (name, value) in
        [("X-Api-Key", "key-secret"), ("Cookie", "id=cookie-secret"), ("Accept", "text/plain")]
    {
        spec.headers.insert(name.to_owned(), value.to_owned());
    }
    spec.max_redirects = 5;
    let result = prober(&[&start, &other]).probe(&spec).await;
    assert!(!shown(&result).contains("secret"), "{result:?}");
    assert_eq!(result.unwrap().redirects, 2);
    let at_home = start.requests();
    for request in &at_home {
        assert!(request.contains("authorization: Basic YWxpY2U6dXJsLXNlY3JldA=="), "{request}");
        assert!(request.contains("key-secret") && request.contains("cookie-secret"), "{request}");
    }
    let away = other.requests().remove(0).to_ascii_lowercase();
    assert!(away.contains("accept: text/plain"), "{away}");
    for secret in ["authorization", "secret", "cookie", "x-api-key", "alice"] {
        assert!(!away.contains(secret), "{secret} went to another origin: {away}");
    }
}

#[tokio::test]
async fn failures_show_no_credentials() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let probe = HeartbeatProbe::new(&["127.0.0.1".to_owned()], None).unwrap();
    let refusing = HeartbeatProbe::new(&[], None).unwrap();
    let url = format!("http://alice:url-secret@{closed}/?key=query-secret");
    for probe in [&probe, &refusing] {
        let mut spec = spec(&url);
        spec.headers.insert("Authorization".to_owned(), "Bearer header-secret".to_owned());
        let result = probe.probe(&spec).await;
        assert!(!shown(&result).contains("secret") && result.is_err(), "{result:?}");
    }
    let mut broken = spec(&url);
    broken.headers.insert("X-Key".to_owned(), "header-secret\r\nX-Evil: 1".to_owned());
    let result = probe.probe(&broken).await;
    assert!(shown(&result).contains("bad_definition") && !shown(&result).contains("secret"), "{result:?}");
}

#[tokio::test]
async fn a_body_is_not_carried_to_another_origin() {
    let other = Target::http(|_| ok("other")).await;
    let away = other.url("/");
    let start = Target::http(move |request| {
        let how = if request.starts_with("POST /keep") { "307 Temporary Redirect" } else { "303 See Other" };
        redirect(how, &away)
    })
    .await;
    let mut spec = spec(&start.url("/keep"));
    spec.method = "POST".to_owned();
    spec.body = Some("body-secret".to_owned());
    spec.max_redirects = 1;
    let probe = prober(&[&start, &other]);
    assert_eq!(failure(&probe, &spec).await.code, "redirect_refused");
    assert_eq!(other.connections(), 0);
    spec.url = start.url("/see");
    probe.probe(&spec).await.unwrap();
    let request = other.requests().remove(0);
    assert!(request.starts_with("GET / ") && !request.contains("secret"), "{request}");
}

#[tokio::test]
async fn a_probe_that_takes_too_long_says_how_far_it_came() {
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let probe = HeartbeatProbe::new(&["127.0.0.1".to_owned()], None).unwrap();
    let mut slow = spec(&format!("http://{}/", mute.local_addr().unwrap()));
    slow.timeout_ms = 150;
    let failed = failure(&probe, &slow).await;
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::Timeout, "timeout"));
    assert!(
        failed.message.contains("150ms") && failed.message.contains("waiting for the status"),
        "{failed:?}"
    );

    // A server that promises more than it sends: the limit holds for the body as well.
    let drip = Target::http(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec()).await;
    let mut cut = spec(&drip.url("/"));
    cut.body_match = Some("whole".to_owned());
    let failed = failure(&probe, &cut).await;
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::System, "connection_broken"));
}

#[tokio::test]
async fn nobody_at_the_address_is_trouble_of_the_surroundings() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let probe = HeartbeatProbe::new(&["127.0.0.1".to_owned()], None).unwrap();
    let failed = failure(&probe, &spec(&format!("http://{closed}/"))).await;
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::System, "connect_failed"));
    let failed = failure(&probe, &spec("http://no-such-host.invalid/")).await;
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::System, "unresolved"));
    let hangs_up = Target::http(|_| Vec::new()).await;
    let failed = failure(&probe, &spec(&hangs_up.url("/"))).await;
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::System, "connection_broken"));
}

#[tokio::test]
async fn a_definition_that_cannot_be_used_is_the_jobs_own_fault() {
    let probe = HeartbeatProbe::new(&[], None).unwrap();
    let mut bad = Vec::new();
    bad.push(spec("not a url"));
    bad.push(HeartbeatSpec { method: "BREW".to_owned(), ..spec("http://example.com/") });
    bad.push(HeartbeatSpec { body_match: Some("(".to_owned()), ..spec("http://example.com/") });
    for name in ["Content-Length", "Transfer-Encoding", "bad name"] {
        let mut one = spec("http://example.com/");
        one.headers.insert(name.to_owned(), "1".to_owned());
        bad.push(one);
    }
    for spec in bad {
        let failed = failure(&probe, &spec).await;
        assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::User, "bad_definition"), "{spec:?}");
    }
}

#[tokio::test]
async fn a_probe_waits_no_longer_than_it_may_even_for_dns() {
    struct Dead;
    #[async_trait::async_trait]
    impl Resolve for Dead {
        async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
            std::future::pending().await
        }
    }
    let probe = HeartbeatProbe::new(&[], None).unwrap().with_resolver(Dead);
    let mut spec = spec("http://example.com/");
    spec.timeout_ms = 50;
    let failed = tokio::time::timeout(Duration::from_secs(10), failure(&probe, &spec)).await.unwrap();
    assert!(failed.kind == FailureKind::Timeout && failed.message.contains("while resolving"), "{failed:?}");
}
