//! HEARTBEAT probes over TLS: each way in which a server's TLS is not in order has a reason of its own.

use std::path::PathBuf;

use chrono::{DateTime, Datelike, Duration, Utc};
use leasehold::{
    protocol::domain::{Failure, FailureKind, HeartbeatSpec},
    workload::heartbeat::{HeartbeatProbe, ProbeReport},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

use super::http_target::{Target, ok, redirect};

type Authority = CertifiedIssuer<'static, KeyPair>;

/// An authority and what it issues.
struct Pki {
    root: Authority,
    intermediate: Authority,
    ca_file: PathBuf,
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

impl Pki {
    fn new(test: &str) -> Self {
        let root = CertifiedIssuer::self_signed(
            authority_params(&format!("{test} root")),
            KeyPair::generate().unwrap(),
        )
        .unwrap();
        let key = KeyPair::generate().unwrap();
        let intermediate =
            CertifiedIssuer::signed_by(authority_params(&format!("{test} intermediate")), key, &root)
                .unwrap();
        let ca_file = std::env::temp_dir().join(format!("leasehold-{test}-{}.pem", std::process::id()));
        std::fs::write(&ca_file, root.pem()).unwrap();
        Self { root, intermediate, ca_file }
    }

    /// A server's configuration with a certificate for 127.0.0.1 that the intermediate issued.
    fn server(&self, change: impl FnOnce(&mut CertificateParams), send_intermediate: bool) -> ServerConfig {
        let (params, key) = leaf(change);
        let certificate = params.signed_by(&key, &self.intermediate).unwrap();
        let mut chain = vec![certificate.der().clone()];
        if send_intermediate {
            chain.push(self.intermediate.der().clone());
        }
        config(chain, &key)
    }

    fn prober(&self) -> HeartbeatProbe {
        HeartbeatProbe::new(&["127.0.0.1".to_owned()], Some(&self.ca_file)).unwrap()
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.ca_file);
    }
}

fn leaf(change: impl FnOnce(&mut CertificateParams)) -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    change(&mut params);
    (params, KeyPair::generate().unwrap())
}

fn config(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> ServerConfig {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap()
}

fn validity(params: &mut CertificateParams, from: DateTime<Utc>, to: DateTime<Utc>) {
    let date = |at: DateTime<Utc>| {
        rcgen::date_time_ymd(at.year(), u8::try_from(at.month()).unwrap(), u8::try_from(at.day()).unwrap())
    };
    params.not_before = date(from);
    params.not_after = date(to);
}

fn spec(address: &str) -> HeartbeatSpec {
    serde_json::from_value(json!({ "url": format!("https://{address}/") })).unwrap()
}

async fn probe(pki: &Pki, server: ServerConfig) -> Result<ProbeReport, Failure> {
    let target = Target::https(server, |_| ok("fine")).await;
    pki.prober().probe(&spec(&target.rule())).await
}

fn assert_fails_as(result: Result<ProbeReport, Failure>, code: &str, reason: &str) {
    let failed = result.expect_err("this TLS is not in order");
    assert_eq!((failed.kind, failed.code.as_str()), (FailureKind::User, code), "{failed:?}");
    assert!(failed.message.contains(reason), "{failed:?}");
}

#[tokio::test]
async fn a_server_whose_certificate_is_in_order_is_healthy() {
    let pki = Pki::new("in-order");
    let report = probe(&pki, pki.server(|_| (), true)).await.unwrap();
    assert_eq!(report.status, 200);
    assert!(!report.insecure_skip_tls_verify);
}

/// HB-05
#[tokio::test]
async fn an_expired_certificate_fails_the_probe_and_says_since_when() {
    let pki = Pki::new("expired");
    let yesterday = Utc::now() - Duration::days(1);
    let server = pki.server(|p| validity(p, yesterday - Duration::days(30), yesterday), true);
    let expected = format!("expired at {}", yesterday.format("%Y-%m-%d"));
    assert_fails_as(probe(&pki, server).await, "tls_expired", &expected);
}

/// HB-05
#[tokio::test]
async fn a_certificate_of_the_future_fails_the_probe() {
    let pki = Pki::new("future");
    let soon = Utc::now() + Duration::days(2);
    let server = pki.server(|p| validity(p, soon, soon + Duration::days(30)), true);
    assert_fails_as(probe(&pki, server).await, "tls_not_yet_valid", "becomes valid only at");
}

/// HB-05
#[tokio::test]
async fn a_self_signed_certificate_fails_the_probe() {
    let pki = Pki::new("self-signed");
    let (params, key) = leaf(|_| ());
    let own = params.self_signed(&key).unwrap();
    assert_fails_as(
        probe(&pki, config(vec![own.der().clone()], &key)).await,
        "tls_self_signed",
        "self-signed",
    );
    // One that also claims to be an authority, as `openssl req -x509` makes them.
    let (params, key) = leaf(|p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    let own = params.self_signed(&key).unwrap();
    assert_fails_as(
        probe(&pki, config(vec![own.der().clone()], &key)).await,
        "tls_self_signed",
        "self-signed",
    );
}

/// HB-05
#[tokio::test]
async fn a_certificate_for_another_host_fails_the_probe() {
    let pki = Pki::new("wrong-host");
    let other = CertificateParams::new(vec!["other.example".to_owned(), "127.0.0.9".to_owned()]).unwrap();
    let server = pki.server(|p| p.subject_alt_names = other.subject_alt_names, true);
    assert_fails_as(probe(&pki, server).await, "tls_wrong_host", "127.0.0.1");
}

/// HB-05
#[tokio::test]
async fn an_authority_that_nobody_trusts_is_told_from_a_chain_with_a_gap() {
    let (pki, stranger) = (Pki::new("trusted"), Pki::new("stranger"));
    assert_fails_as(probe(&pki, stranger.server(|_| (), true)).await, "tls_unknown_issuer", "not trusted");
    assert_fails_as(probe(&pki, pki.server(|_| (), false)).await, "tls_incomplete_chain", "intermediate");
    // The gap is the server's: with the intermediate sent, the same authority is trusted.
    probe(&pki, pki.server(|_| (), true)).await.unwrap();
    assert_ne!(pki.root.der(), stranger.root.der());
}

/// HB-05: a server that knows nothing newer than TLS 1.0, once by what it says and once by an alert.
#[tokio::test]
async fn a_server_that_speaks_only_tls_1_0_fails_the_probe() {
    let pki = Pki::new("tls10");
    let random = [7_u8; 32];
    // ServerHello: version 3.1, random, no session id, TLS_RSA_WITH_AES_128_CBC_SHA, no compression.
    let mut hello = vec![0x02, 0x00, 0x00, 0x26, 0x03, 0x01];
    hello.extend_from_slice(&random);
    hello.extend_from_slice(&[0x00, 0x00, 0x2f, 0x00]);
    let mut record = vec![0x16, 0x03, 0x01, 0x00, u8::try_from(hello.len()).unwrap()];
    record.extend_from_slice(&hello);
    let alert = vec![0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 70];
    for answer in [record, alert] {
        let address = answer_raw(answer).await;
        let result = pki.prober().probe(&spec(&address)).await;
        assert_fails_as(result, "tls_too_old", "1.2");
    }
}

/// HB-05
#[tokio::test]
async fn plain_http_on_the_tls_port_is_called_that() {
    let pki = Pki::new("plain");
    let address = answer_raw(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec()).await;
    assert_fails_as(pki.prober().probe(&spec(&address)).await, "tls_not_spoken", "plain HTTP");
}

/// HB-05: skipping the check exists only where the job says so, and is seen in what the job reports.
#[tokio::test]
async fn skipping_the_check_is_explicit_and_shown() {
    let pki = Pki::new("skip");
    let (params, key) = leaf(|_| ());
    let own = params.self_signed(&key).unwrap();
    let target = Target::https(config(vec![own.der().clone()], &key), |_| ok("fine")).await;
    let mut spec = spec(&target.rule());
    spec.insecure_skip_tls_verify = true;
    let report = pki.prober().probe(&spec).await.unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["insecure_skip_tls_verify"], true, "{json}");
}

/// A redirect out of TLS would send in the clear what was meant to be protected.
#[tokio::test]
async fn a_redirect_from_https_to_http_is_refused() {
    let pki = Pki::new("downgrade");
    let plain = Target::http(|_| ok("in the clear")).await;
    let to = plain.url("/");
    let target = Target::https(pki.server(|_| (), true), move |_| redirect("302 Found", &to)).await;
    let mut spec = spec(&target.rule());
    spec.max_redirects = 3;
    assert_fails_as(pki.prober().probe(&spec).await, "redirect_refused", "from https");
    assert_eq!(plain.connections(), 0);
}

#[tokio::test]
async fn an_authority_file_that_cannot_be_used_is_refused_by_name() {
    let empty = std::env::temp_dir().join(format!("leasehold-empty-{}.pem", std::process::id()));
    std::fs::write(&empty, "").unwrap();
    for path in [empty.clone(), PathBuf::from("/no/such/file.pem")] {
        let error = HeartbeatProbe::new(&[], Some(&path)).unwrap_err().to_string();
        assert!(
            error.starts_with("HEARTBEAT_CA_FILE: ") && error.contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    std::fs::remove_file(empty).unwrap();
}

/// Reads the client's first bytes, answers with these, and closes.
async fn answer_raw(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut first = [0; 2048];
        let _ = stream.read(&mut first).await;
        let _ = stream.write_all(&answer).await;
        // Not closed before the answer was read: a reset could overtake it.
        let _ = stream.read(&mut first).await;
    });
    address
}
