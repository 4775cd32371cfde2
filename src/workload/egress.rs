//! Which addresses a HEARTBEAT probe may contact.
//!
//! A probe runs inside the operator's network on behalf of whoever may submit jobs, so by default it reaches
//! public addresses only. Every hop of a probe is checked *before* anything is sent to it, after its name was
//! resolved, and the connection is then made to exactly the checked addresses: nothing is resolved twice, so
//! a name that changes its answer in between (DNS rebinding) gains nothing. If one address of a name is
//! forbidden, the whole name is.
//!
//! `HEARTBEAT_ALLOW` lifts the refusal for what an operator names:
//!
//! | rule | lifts it for |
//! |---|---|
//! | `10.1.2.3`, `fd00::5` | that address, any port |
//! | `10.1.2.3:8080`, `[fd00::5]:8080` | that address and port |
//! | `10.1.0.0/16`, `fd00::/8` | those addresses, any port |
//! | `db.internal`, `db.internal:8080` | whatever that name resolves to: the rule trusts the name's DNS |

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::LazyLock,
};

use async_trait::async_trait;
use ipnet::IpNet;

/// An address, or the lack of one, that a probe may not contact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The address is special.
    #[error(
        "{host} is {what} ({address}); probes reach public addresses only, unless the worker's HEARTBEAT_ALLOW names it"
    )]
    Special {
        /// The host as the address of the probe names it.
        host: String,
        /// The address that it stands for.
        address: IpAddr,
        /// What is special about it.
        what: &'static str,
    },
    /// Another scheme than http and https.
    #[error("the scheme {0:?} is not allowed; use http or https")]
    Scheme(String),
    /// There is no host, or port 0.
    #[error("the address has no usable host or port")]
    NoHost,
}

/// Why a hop has no checked addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The policy forbids it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The name has no address, or the resolver did not answer.
    #[error("{host} cannot be resolved: {reason}")]
    Unresolved {
        /// The name.
        host: String,
        /// The resolver's words.
        reason: String,
    },
}

/// A rule of `HEARTBEAT_ALLOW` that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "HEARTBEAT_ALLOW: {rule:?} is no rule; write an address, a network as 10.0.0.0/8, a host name, or one of the first and the last with :port"
)]
pub struct InvalidRule {
    /// The rule as written.
    pub rule: String,
}

/// Answers names. A port, so that tests can play a hostile DNS.
#[async_trait]
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of a host. The caller never asks twice about one hop.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The operating system's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Network(IpNet),
    Address(IpAddr, u16),
    Host(String, Option<u16>),
}

/// The default refusals, and the exceptions from them.
#[derive(Debug, Clone, Default)]
pub struct EgressPolicy {
    allow: Vec<Rule>,
}

/// A hop that may be contacted, at exactly these addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedHop {
    /// The addresses that were checked, in the resolver's order.
    pub addresses: Vec<SocketAddr>,
}

impl EgressPolicy {
    /// Reads the rules of `HEARTBEAT_ALLOW`.
    ///
    /// # Errors
    /// [`InvalidRule`] for the first that cannot be read.
    pub fn new<S: AsRef<str>>(rules: &[S]) -> Result<Self, InvalidRule> {
        let allow = rules.iter().map(|rule| parse_rule(rule.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { allow })
    }

    /// Checks one hop, resolving its name once.
    ///
    /// # Errors
    /// [`ResolveError`] when the hop is forbidden or has no address. Nothing was contacted then, the
    /// resolver apart.
    pub async fn check(&self, url: &url::Url, resolver: &dyn Resolve) -> Result<CheckedHop, ResolveError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refusal::Scheme(url.scheme().to_owned()).into());
        }
        let port = url.port_or_known_default().filter(|port| *port != 0).ok_or(Refusal::NoHost)?;
        let addresses = match url.host().ok_or(Refusal::NoHost)? {
            url::Host::Ipv4(address) => vec![SocketAddr::from((address, port))],
            url::Host::Ipv6(address) => vec![SocketAddr::from((address, port))],
            url::Host::Domain(name) => {
                let unresolved = |reason: String| ResolveError::Unresolved { host: name.to_owned(), reason };
                let found = resolver.resolve(name, port).await.map_err(|e| unresolved(e.to_string()))?;
                if found.is_empty() {
                    return Err(unresolved("it has no address".to_owned()));
                }
                found
            }
        };
        let host = url.host_str().unwrap_or_default();
        for address in &addresses {
            self.check_address(host, SocketAddr::new(address.ip(), port))?;
        }
        Ok(CheckedHop { addresses })
    }

    fn check_address(&self, host: &str, address: SocketAddr) -> Result<(), Refusal> {
        let ip = address.ip().to_canonical();
        let Some(what) = special(ip) else { return Ok(()) };
        let name = host.trim_end_matches('.');
        let allowed = self.allow.iter().any(|rule| match rule {
            Rule::Network(network) => network.contains(&ip),
            Rule::Address(allowed, port) => *allowed == ip && *port == address.port(),
            Rule::Host(allowed, port) => {
                allowed.eq_ignore_ascii_case(name) && port.is_none_or(|port| port == address.port())
            }
        });
        if allowed { Ok(()) } else { Err(Refusal::Special { host: host.to_owned(), address: ip, what }) }
    }
}

fn parse_rule(text: &str) -> Result<Rule, InvalidRule> {
    let text = text.trim();
    let invalid = || InvalidRule { rule: text.to_owned() };
    if let Ok(network) = text.parse::<IpNet>() {
        return Ok(Rule::Network(network.trunc()));
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(Rule::Network(address.to_canonical().into()));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Rule::Address(address.ip().to_canonical(), address.port()));
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, Some(port.parse::<u16>().ok().filter(|p| *p != 0).ok_or_else(invalid)?)),
        None => (text, None),
    };
    let name = name.trim_end_matches('.');
    let is_name = !name.is_empty()
        && name.len() <= 253
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        // "10.1.2.300" is a mistyped address and no name.
        && !name.rsplit('.').next().is_some_and(|last| last.chars().all(|c| c.is_ascii_digit()));
    if is_name { Ok(Rule::Host(name.to_owned(), port)) } else { Err(invalid()) }
}

/// Says what is special about an address that is not an ordinary public one. Addresses that carry an IPv4
/// address inside are judged by that one.
#[must_use]
pub fn special(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(ip) => lookup(ip.into()),
        IpAddr::V6(ip) => match embedded(ip) {
            Some(inner) => lookup(inner.into()),
            None => lookup(ip.into()),
        },
    }
}

fn lookup(ip: IpAddr) -> Option<&'static str> {
    NETWORKS.iter().find(|(network, _)| network.contains(&ip)).map(|(_, what)| *what)
}

/// The IPv4 address that an IPv6 one is translated to, or tunnelled to, on the way.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = ip.segments();
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        // ::ffff:a.b.c.d (mapped), ::ffff:0:a.b.c.d (translated), 64:ff9b::a.b.c.d (NAT64)
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => of(high, low),
        // ::a.b.c.d (compatible); :: and ::1 are themselves.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 || low > 1 => of(high, low),
        // 2002:a.b.c.d:: (6to4)
        [0x2002, high, low, ..] => of(high, low),
        // …:0:5efe:a.b.c.d (ISATAP)
        [_, _, _, _, 0 | 0x0200, 0x5efe, high, low] => of(high, low),
        _ => None,
    }
}

/// Everything that is not an ordinary public address: the special-purpose registries of IANA, and where
/// clouds answer their metadata. The narrower network stands before the wider one.
static NETWORKS: LazyLock<Vec<(IpNet, &'static str)>> = LazyLock::new(|| {
    [
        ("169.254.169.254/32", "a cloud's metadata address"),
        ("100.100.100.200/32", "a cloud's metadata address"),
        ("168.63.129.16/32", "a cloud's metadata address"),
        ("192.0.0.192/32", "a cloud's metadata address"),
        ("fd00:ec2::254/128", "a cloud's metadata address"),
        ("fd20:ce::254/128", "a cloud's metadata address"),
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "an address of carrier-grade NAT"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "an address for protocol assignments"),
        ("192.0.2.0/24", "a documentation address"),
        ("192.88.99.0/24", "an address of 6to4 relays"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "a benchmarking address"),
        ("198.51.100.0/24", "a documentation address"),
        ("203.0.113.0/24", "a documentation address"),
        ("224.0.0.0/4", "a multicast address"),
        ("255.255.255.255/32", "the broadcast address"),
        ("240.0.0.0/4", "a reserved address"),
        ("::/128", "the unspecified address"),
        ("::1/128", "a loopback address"),
        ("64:ff9b:1::/48", "an address of local NAT64"),
        ("100::/64", "a discard-only address"),
        ("2001::/32", "an address of Teredo"),
        ("2001:2::/48", "a benchmarking address"),
        ("2001:db8::/32", "a documentation address"),
        ("2001::/23", "an address for protocol assignments"),
        ("3fff::/20", "a documentation address"),
        ("5f00::/16", "an address of segment routing"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a site-local address"),
        ("ff00::/8", "a multicast address"),
    ]
    .into_iter()
    .map(|(network, what)| (network.parse().expect("the table holds valid networks"), what))
    .collect()
});

impl fmt::Display for CheckedHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.addresses).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn special_addresses_of_every_sort_are_known() {
        for text in [
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::",
            "2606:4700::5efe:10.0.0.1",
            "2001::1",
            "2001:2::1",
            "2001:db8::1",
            "2001:20::1",
            "3fff::1",
            "100::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd12::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "5f00::1",
        ] {
            let ip = text.parse().expect("an address");
            assert!(special(ip).is_some(), "{text} passed as public");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.255.255",
            "172.32.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2a00:1450::1",
        ] {
            let ip = text.parse().expect("an address");
            assert_eq!(special(ip), None, "{text} was refused");
        }
    }

    /// Answers each question with the next of its answers, and counts.
    struct Script(Mutex<Vec<Vec<&'static str>>>);

    #[async_trait]
    impl Resolve for Script {
        async fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            let answer = self.0.lock().expect("no panic while locked").remove(0);
            Ok(answer.iter().map(|ip| SocketAddr::new(ip.parse().expect("an address"), port)).collect())
        }
    }

    async fn check(
        policy: &EgressPolicy,
        url: &str,
        answers: &[&'static str],
    ) -> Result<CheckedHop, ResolveError> {
        let url = url.parse().expect("a URL");
        policy.check(&url, &Script(Mutex::new(vec![answers.to_vec()]))).await
    }

    /// HB-01: the many ways to write one address.
    #[tokio::test]
    async fn a_loopback_address_is_refused_however_it_is_written() {
        let policy = EgressPolicy::default();
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://017700000001/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[0:0:0:0:0:ffff:7f00:1]:80/",
            "http://0/",
            "http://user:pw@127.0.0.1/",
            "https://①②⑦.0.0.1/",
        ] {
            let error = check(&policy, url, &[]).await.expect_err(url);
            assert!(matches!(error, ResolveError::Refused(Refusal::Special { .. })), "{url}: {error}");
        }
        for url in
            ["file:///etc/passwd", "ftp://example.com/", "gopher://example.com/", "unix:/var/run/docker.sock"]
        {
            let error = check(&policy, url, &[]).await.expect_err(url);
            assert!(matches!(error, ResolveError::Refused(Refusal::Scheme(_))), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn one_forbidden_address_forbids_the_name() {
        let policy = EgressPolicy::default();
        let error = check(&policy, "http://two.example/", &["93.184.216.34", "10.0.0.7"]).await;
        let text = error.expect_err("one of the two is private").to_string();
        assert!(text.contains("two.example is a private address (10.0.0.7)"), "{text}");
        let hop = check(&policy, "http://one.example:81/", &["93.184.216.34"]).await.expect("public");
        assert_eq!(hop.addresses, ["93.184.216.34:81".parse().expect("an address")]);
    }

    #[tokio::test]
    async fn the_allow_list_lifts_the_refusal_for_exactly_what_it_names() {
        let policy = EgressPolicy::new(&[
            "10.1.0.0/16",
            "127.0.0.1:8080",
            "fd00::5",
            "db.internal",
            "web.internal:81",
        ]);
        let policy = policy.expect("these are rules");
        for (url, answer) in [
            ("http://10.1.2.3/", ""),
            ("http://127.0.0.1:8080/", ""),
            ("http://[fd00::5]:9/", ""),
            ("http://db.internal:5/", "192.168.0.1"),
            ("http://DB.internal./", "192.168.0.1"),
            ("http://web.internal:81/", "10.9.9.9"),
            ("http://[::ffff:10.1.2.3]/", ""),
        ] {
            assert!(check(&policy, url, &[answer]).await.is_ok(), "{url} was refused");
        }
        for (url, answer) in [
            ("http://10.2.0.1/", ""),
            ("http://127.0.0.1:8081/", ""),
            ("http://[fd00::6]/", ""),
            ("http://evil.db.internal/", "192.168.0.1"),
            ("http://web.internal:82/", "10.9.9.9"),
            ("http://xdb.internal/", "192.168.0.1"),
        ] {
            assert!(check(&policy, url, &[answer]).await.is_err(), "{url} was allowed");
        }
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_refused_by_name() {
        for rule in
            ["", " ", "10.0.0.0/33", "10.1.2.300", "host:0", "host:x", "a b", "http://x", "*", "x:1:2"]
        {
            let error = EgressPolicy::new(&[rule]).expect_err(rule);
            assert!(error.to_string().starts_with("HEARTBEAT_ALLOW: "), "{error}");
        }
    }
}
