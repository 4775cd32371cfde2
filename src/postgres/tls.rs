//! Reads `DATABASE_URL` as libpq would, TLS included, and never says more of it than which part is wrong.
//!
//! | sslmode | encrypted | certificate checked |
//! |---|---|---|
//! | `disable` | no | |
//! | `allow`, `prefer` (default) | if the server offers it | no |
//! | `require` | yes, or refused | only with `DATABASE_CA_FILE` or `sslrootcert` |
//! | `verify-ca` | yes, or refused | signed by a trusted authority |
//! | `verify-full` | yes, or refused | and made out for that host |

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Why a connection string or its TLS settings cannot be used. Never quotes the string.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AddressError {
    /// Not a connection string.
    #[error(
        "DATABASE_URL is not a connection string; write postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters in the password percent-encoded"
    )]
    Malformed,
    /// An unknown `sslmode`.
    #[error("DATABASE_URL: unknown sslmode; use disable, allow, prefer, require, verify-ca or verify-full")]
    UnknownSslMode,
    /// A file of trusted certificates cannot be used.
    #[error("DATABASE_CA_FILE {path:?}: {reason}")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// `verify-*` without anything to verify against.
    #[error(
        "DATABASE_URL: sslmode verify-ca and verify-full need trusted certificates, and this machine has none; set DATABASE_CA_FILE"
    )]
    NoAuthorities,
}

/// How a server's certificate is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Nothing,
    Chain,
    ChainAndHost,
}

/// A parsed address with its TLS connector.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) tls: MakeRustlsConnect,
}

impl Address {
    /// One address for each server that it names, in order. Which of them is the primary is for us to find out,
    /// whatever `target_session_attrs` says: an earlier primary takes writes too.
    pub(crate) fn servers(&self) -> Vec<Self> {
        let given = &self.config;
        let count = given.get_hosts().len().max(given.get_hostaddrs().len());
        (0..count).map(|n| Self { config: only(given, n), tls: self.tls.clone() }).collect()
    }

    /// Host and port of its first server, for people.
    pub(crate) fn name(&self) -> String {
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        match (self.config.get_hosts().first(), self.config.get_hostaddrs().first()) {
            (Some(Host::Tcp(host)), _) => format!("{host}:{port}"),
            (Some(Host::Unix(path)), _) => format!("{}:{port}", path.display()),
            (None, Some(address)) => format!("{address}:{port}"),
            (None, None) => "no host".to_owned(),
        }
    }
}

/// The same settings for the n-th server alone. (The driver's own can only be added to.)
fn only(given: &tokio_postgres::Config, n: usize) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    match given.get_hosts().get(n) {
        Some(Host::Tcp(host)) => _ = config.host(host),
        Some(Host::Unix(path)) => _ = config.host_path(path),
        None => {}
    }
    if let Some(address) = given.get_hostaddrs().get(n) {
        config.hostaddr(*address);
    }
    if let Some(port) = given.get_ports().get(n).or_else(|| given.get_ports().first()) {
        config.port(*port);
    }
    if let Some(user) = given.get_user() {
        config.user(user);
    }
    if let Some(password) = given.get_password() {
        config.password(password);
    }
    if let Some(database) = given.get_dbname() {
        config.dbname(database);
    }
    if let Some(options) = given.get_options() {
        config.options(options);
    }
    if let Some(name) = given.get_application_name() {
        config.application_name(name);
    }
    if let Some(limit) = given.get_connect_timeout() {
        config.connect_timeout(*limit);
    }
    if let Some(limit) = given.get_tcp_user_timeout() {
        config.tcp_user_timeout(*limit);
    }
    if let Some(interval) = given.get_keepalives_interval() {
        config.keepalives_interval(interval);
    }
    if let Some(retries) = given.get_keepalives_retries() {
        config.keepalives_retries(retries);
    }
    config
        .keepalives(given.get_keepalives())
        .keepalives_idle(given.get_keepalives_idle())
        .ssl_mode(given.get_ssl_mode())
        .ssl_negotiation(given.get_ssl_negotiation())
        .channel_binding(given.get_channel_binding());
    config
}

/// Takes `sslmode` and `sslrootcert` out of a connection string: the driver knows only half of their values.
pub(crate) fn split_tls(url: &str) -> (String, Option<String>, Option<PathBuf>) {
    let (mut mode, mut root) = (None, None);
    let mut keep = |pair: &str| {
        let Some((key, value)) = pair.split_once('=') else { return true };
        match key.trim() {
            "sslmode" => mode = Some(value.trim().trim_matches('\'').to_owned()),
            "sslrootcert" => root = Some(PathBuf::from(value.trim().trim_matches('\''))),
            _ => return true,
        }
        false
    };
    let rest = if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        match url.split_once('?') {
            Some((base, query)) => {
                let kept: Vec<&str> = query.split('&').filter(|pair| keep(pair)).collect();
                if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) }
            }
            None => url.to_owned(),
        }
    } else if url.contains('\'') {
        // A quoted value may hold anything, blanks included: take out only whole words outside of quotes.
        let mut kept = String::new();
        for (n, part) in url.split('\'').enumerate() {
            if n > 0 {
                kept.push('\'');
            }
            if n % 2 == 0 {
                let words: Vec<&str> = part.split(' ').filter(|word| keep(word)).collect();
                kept.push_str(&words.join(" "));
            } else {
                kept.push_str(part);
            }
        }
        kept
    } else {
        url.split_whitespace().filter(|pair| keep(pair)).collect::<Vec<_>>().join(" ")
    };
    (rest, mode, root)
}

/// Parses a connection string.
pub(crate) fn parse(url: &str, ca_file: Option<&PathBuf>) -> Result<Address, AddressError> {
    let (rest, mode, root) = split_tls(url.trim());
    if rest.trim().is_empty() {
        return Err(AddressError::Malformed);
    }
    let mut config: tokio_postgres::Config = rest.parse().map_err(|_| AddressError::Malformed)?;
    let ca_file = ca_file.cloned().or(root);
    let (ssl, check) = match mode.as_deref() {
        None | Some("prefer" | "allow") => (SslMode::Prefer, Check::Nothing),
        Some("disable") => (SslMode::Disable, Check::Nothing),
        Some("require") if ca_file.is_none() => (SslMode::Require, Check::Nothing),
        Some("require" | "verify-ca") => (SslMode::Require, Check::Chain),
        Some("verify-full") => (SslMode::Require, Check::ChainAndHost),
        Some(_) => return Err(AddressError::UnknownSslMode),
    };
    // A unix socket does not leave the machine; libpq ignores sslmode there too.
    let local =
        !config.get_hosts().is_empty() && config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
    config.ssl_mode(if local { SslMode::Disable } else { ssl });
    Ok(Address { config, tls: connector(check, ca_file)? })
}

fn connector(check: Check, ca_file: Option<PathBuf>) -> Result<MakeRustlsConnect, AddressError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring offers the default protocol versions");
    let roots = if check == Check::Nothing { RootCertStore::empty() } else { authorities(ca_file)? };
    let config = if check == Check::ChainAndHost {
        builder.with_root_certificates(roots).with_no_client_auth()
    } else {
        let chain = (check == Check::Chain)
            .then(|| {
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()
            })
            .transpose()
            .map_err(|_| AddressError::NoAuthorities)?;
        let verifier = Arc::new(Lenient { chain, provider });
        builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
    };
    Ok(MakeRustlsConnect::new(config))
}

fn authorities(ca_file: Option<PathBuf>) -> Result<RootCertStore, AddressError> {
    let mut roots = RootCertStore::empty();
    // Only a file that is named is trusted, as with libpq; without one, what the machine trusts.
    if let Some(path) = ca_file {
        let fail = |reason: String| AddressError::CaFile { path: path.clone(), reason };
        let pem = std::fs::read(&path).map_err(|e| fail(e.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|e| fail(format!("not a PEM certificate: {e}")))?;
            roots.add(certificate).map_err(|e| fail(e.to_string()))?;
        }
        if roots.is_empty() {
            return Err(fail("holds no PEM certificate".to_owned()));
        }
        return Ok(roots);
    }
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(AddressError::NoAuthorities) } else { Ok(roots) }
}

/// Looks at the chain without the host name, or at nothing at all: what libpq's weaker modes promise.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::NotValidForName
                | rustls::CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> SslMode {
        parse(url, None).unwrap_or_else(|e| panic!("{url}: {e}")).config.get_ssl_mode()
    }

    #[test]
    fn sslmode_is_read_as_libpq_reads_it() {
        assert_eq!(mode("postgres://u@h/d"), SslMode::Prefer);
        assert_eq!(mode("postgres://u@h/d?sslmode=disable&connect_timeout=3"), SslMode::Disable);
        assert_eq!(mode("host=h user=u sslmode=require"), SslMode::Require);
        assert_eq!(mode("host=h user=u password='a sslmode=disable b' sslmode=require"), SslMode::Require);
        assert_eq!(mode("host=/run/postgresql user=u sslmode=require"), SslMode::Disable);
        assert!(matches!(parse("postgres://u@h/d?sslmode=no", None), Err(AddressError::UnknownSslMode)));
    }

    /// AP-15
    #[test]
    fn a_bad_connection_string_is_refused_without_being_quoted() {
        for url in [
            "",
            "postgres://u:hunter2@h:notaport/d",
            "host=h password=hunter2 x hunter2=1",
            "postgres://u:hunter2@h/d?x=hunter2",
            "mysql://u:hunter2@h/d",
        ] {
            let Err(error) = parse(url, None) else { panic!("{url} was accepted") };
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn a_missing_ca_file_is_named() {
        let path = PathBuf::from("/nonexistent/ca.pem");
        let Err(error) = parse("postgres://u@h/d?sslmode=verify-full", Some(&path)) else {
            panic!("accepted")
        };
        assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
    }
}
