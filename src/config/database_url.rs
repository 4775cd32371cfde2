//! The database's address: whether it can be understood, and how it is shown. The password never leaves here.

use std::str::FromStr;

use tokio_postgres::{Config, config::Host};

use crate::postgres::tls::split_tls;

/// The driver's reading of an address, and the `sslmode`, which it knows only half of.
fn parse(url: &str) -> Option<(Config, Option<String>)> {
    let (rest, mode, _) = split_tls(url.trim());
    Some((Config::from_str(&rest).ok()?, mode))
}

/// Says why an address cannot be understood, without repeating any of it.
pub(super) fn check(url: &str) -> Result<(), String> {
    let (config, mode) = parse(url)
        .ok_or("is no database address; a password with @ : / or % must be percent-encoded in a URL")?;
    if let Some(mode) = mode
        && !["disable", "allow", "prefer", "require", "verify-ca", "verify-full"].contains(&mode.as_str())
    {
        return Err("has an unknown sslmode; use disable, allow, prefer, require, verify-ca or verify-full"
            .to_owned());
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("names no host".to_owned());
    }
    Ok(())
}

/// The address without its password, for people: `host=… port=… user=… password=*** dbname=…`.
#[must_use]
pub fn masked(url: &str) -> String {
    let Some((config, mode)) = parse(url) else { return "***".to_owned() };
    let mut parts = Vec::new();
    for host in config.get_hosts() {
        parts.push(match host {
            Host::Tcp(name) => format!("host={name}"),
            Host::Unix(path) => format!("host={}", path.display()),
        });
    }
    for address in config.get_hostaddrs() {
        parts.push(format!("hostaddr={address}"));
    }
    for port in config.get_ports() {
        parts.push(format!("port={port}"));
    }
    if let Some(user) = config.get_user() {
        parts.push(format!("user={user}"));
    }
    if config.get_password().is_some() {
        parts.push("password=***".to_owned());
    }
    if let Some(name) = config.get_dbname() {
        parts.push(format!("dbname={name}"));
    }
    if let Some(mode) = mode {
        parts.push(format!("sslmode={mode}"));
    }
    parts.join(" ")
}
