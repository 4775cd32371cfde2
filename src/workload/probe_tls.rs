//! TLS of HEARTBEAT probes: whom they trust, and why a connection failed, each reason with its own code.
//!
//! Trusted are the operating system's authorities and those of `HEARTBEAT_CA_FILE`. A probe with
//! `insecure_skip_tls_verify` accepts any certificate; nothing else about its connection changes.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use chrono::{DateTime, SecondsFormat};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, OtherError, PeerIncompatible,
    RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

/// `HEARTBEAT_CA_FILE` cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("HEARTBEAT_CA_FILE: {path}: {reason}; give a readable PEM file with at least one certificate")]
pub struct InvalidCaFile {
    path: PathBuf,
    reason: String,
}

/// The two ways in which a probe can meet a server.
#[derive(Debug, Clone)]
pub(super) struct ProbeTls {
    verified: ClientConfig,
    unverified: ClientConfig,
}

impl ProbeTls {
    pub(super) fn new(ca_file: Option<&Path>) -> Result<Self, InvalidCaFile> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = NATIVE_ROOTS.clone();
        if let Some(path) = ca_file {
            let invalid = |reason: String| InvalidCaFile { path: path.to_owned(), reason };
            let mut added = 0;
            for certificate in CertificateDer::pem_file_iter(path).map_err(|e| invalid(e.to_string()))? {
                let certificate = certificate.map_err(|e| invalid(e.to_string()))?;
                roots.add(certificate).map_err(|e| invalid(e.to_string()))?;
                added += 1;
            }
            if added == 0 {
                return Err(invalid("it holds no certificate".to_owned()));
            }
        }
        let builder = || {
            ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
                .expect("ring has suites for TLS 1.2 and 1.3")
                .dangerous()
        };
        let subjects = roots.roots.iter().map(|root| root.subject.as_ref().to_vec()).collect();
        // A machine without any authority can still probe plain HTTP; rustls makes no verifier of nothing.
        let inner = if roots.is_empty() {
            None
        } else {
            let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            Some(built.build().expect("the store is not empty and there are no revocation lists"))
        };
        let verifier = Verifier { inner, subjects, provider: Arc::clone(&provider) };
        let verified = builder().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
        let any = AnyCertificate { provider: Arc::clone(&provider) };
        let unverified = builder().with_custom_certificate_verifier(Arc::new(any)).with_no_client_auth();
        Ok(Self { verified, unverified })
    }

    pub(super) fn config(&self, insecure: bool) -> ClientConfig {
        if insecure { self.unverified.clone() } else { self.verified.clone() }
    }
}

/// The operating system's authorities, read once.
static NATIVE_ROOTS: LazyLock<RootCertStore> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "a certificate of the operating system cannot be read");
    }
    let (added, _) = roots.add_parsable_certificates(native.certs);
    if added == 0 {
        tracing::warn!(
            "the operating system has no certificate authorities: https probes will fail; install ca-certificates"
        );
    }
    roots
});

/// What rustls only calls an unknown issuer, told apart for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Untrusted {
    #[error("the certificate is self-signed")]
    SelfSigned,
    #[error("the certificate's issuer is neither trusted nor sent along")]
    Incomplete,
}

/// The usual verifier, with a closer look at chains that lead nowhere.
#[derive(Debug)]
struct Verifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    /// Names of the trusted authorities.
    subjects: Vec<Vec<u8>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn explain(&self, leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> rustls::Error {
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let Ok(certificate) = webpki::EndEntityCert::try_from(leaf) else { return unknown };
        let because =
            |why| rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))));
        if certificate.issuer() == certificate.subject() {
            return because(Untrusted::SelfSigned);
        }
        let known = |name: &[u8]| self.subjects.iter().any(|subject| subject == name);
        if others.is_empty() && !known(certificate.issuer()) {
            return because(Untrusted::Incomplete);
        }
        unknown
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = match &self.inner {
            Some(inner) => inner.verify_server_cert(leaf, others, name, ocsp, now),
            None => Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        };
        verified.map_err(|error| match &error {
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => self.explain(leaf, others),
            // An authority's own certificate that serves as a server's is how many self-signed ones are made.
            rustls::Error::InvalidCertificate(CertificateError::Other(_)) => match self.explain(leaf, others)
            {
                rustls::Error::InvalidCertificate(CertificateError::Other(why)) if is_self_signed(&why) => {
                    rustls::Error::InvalidCertificate(CertificateError::Other(why))
                }
                _ => error,
            },
            _ => error,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// `insecure_skip_tls_verify`: any certificate will do, but the server must own it.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn is_self_signed(error: &OtherError) -> bool {
    error.0.downcast_ref::<Untrusted>() == Some(&Untrusted::SelfSigned)
}

/// The stable code of a TLS failure, and its reason for people.
pub(super) fn explain(error: &rustls::Error) -> (&'static str, String) {
    use CertificateError as C;
    let day = |time: &UnixTime| {
        let secs = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        DateTime::from_timestamp(secs, 0)
            .map_or_else(String::new, |at| at.to_rfc3339_opts(SecondsFormat::Secs, true))
    };
    match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            C::ExpiredContext { not_after, .. } => {
                ("tls_expired", format!("the server's certificate expired at {}", day(not_after)))
            }
            C::Expired => ("tls_expired", "the server's certificate has expired".to_owned()),
            C::NotValidYetContext { not_before, .. } => (
                "tls_not_yet_valid",
                format!("the server's certificate becomes valid only at {}", day(not_before)),
            ),
            C::NotValidYet => ("tls_not_yet_valid", "the server's certificate is not yet valid".to_owned()),
            C::NotValidForNameContext { expected, .. } => (
                "tls_wrong_host",
                format!("the server's certificate is not for the host {}", expected.to_str()),
            ),
            C::NotValidForName => {
                ("tls_wrong_host", "the server's certificate is not for this host".to_owned())
            }
            C::UnknownIssuer => (
                "tls_unknown_issuer",
                "the server's certificate was issued by an authority that is not trusted; add it to \
                 HEARTBEAT_CA_FILE if it should be"
                    .to_owned(),
            ),
            C::Other(other) => match other.0.downcast_ref::<Untrusted>() {
                Some(Untrusted::SelfSigned) => (
                    "tls_self_signed",
                    "the server's certificate is self-signed; add it to HEARTBEAT_CA_FILE if it should be \
                     trusted"
                        .to_owned(),
                ),
                Some(Untrusted::Incomplete) => (
                    "tls_incomplete_chain",
                    "the server sends its own certificate only, and no trusted authority issued that: the \
                     server must send its intermediate certificates, or its authority must stand in \
                     HEARTBEAT_CA_FILE"
                        .to_owned(),
                ),
                None => ("tls_bad_certificate", format!("the server's certificate cannot be used: {other}")),
            },
            other => ("tls_bad_certificate", format!("the server's certificate cannot be used: {other}")),
        },
        rustls::Error::InvalidMessage(_) => (
            "tls_not_spoken",
            "the server answered, but not in TLS: is this a plain HTTP port? (then the address begins with http:)"
                .to_owned(),
        ),
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
        | rustls::Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => ("tls_too_old", "the server speaks no TLS newer than 1.1; it must offer 1.2 or 1.3".to_owned()),
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => (
            "tls_client_certificate_required",
            "the server asks for a client certificate, which probes do not have".to_owned(),
        ),
        rustls::Error::AlertReceived(alert) => {
            ("tls_handshake_failed", format!("the server refused the TLS handshake: {alert:?}"))
        }
        other => ("tls_handshake_failed", format!("the TLS handshake failed: {other}")),
    }
}
