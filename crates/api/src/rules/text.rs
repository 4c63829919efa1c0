//! Shapes of texts, each as a regular expression (RE2, for CEL) and as a function.

use std::net::IpAddr;

use crate::quantity::Quantity;

/// A DNS-1035 label of any length.
pub(super) const DNS_LABEL: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
/// A DNS-1123 subdomain of any length.
const DNS_SUBDOMAIN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The longest DNS-1123 subdomain.
const MAX_DNS_SUBDOMAIN: usize = 253;
/// A key of a label or an annotation; the part before the slash of any length.
pub(super) const KEY: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// The longest key: a subdomain, a slash and a name.
pub(super) const MAX_KEY: usize = MAX_DNS_SUBDOMAIN + 1 + 63;
/// The value of a label.
pub(super) const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";
/// Letters that need no quotes in any client, shell, URI or configuration file. A later version can allow more letters, but
/// not fewer.
pub(super) const IDENTIFIER: &str = "[A-Za-z_][A-Za-z0-9_-]{0,62}";
/// A text without control characters.
pub(super) const NO_CONTROL: &str = "^[^\\\\x00-\\\\x1f\\\\x7f]*$";

/// Keys that an API server takes in a Secret.
pub(super) const SECRET_KEY: &str = "^[-._a-zA-Z0-9]{1,253}$";

/// A quantity of any length, as `Quantity::parse` takes it. The API server accepts longer exponents, too.
pub(super) const QUANTITY: &str = "^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$";
/// The longest quantity: more digits than those of 2^63 in thousand-millionths.
pub(super) const MAX_QUANTITY: usize = 32;

/// See [`QUANTITY`] and [`MAX_QUANTITY`].
pub(super) fn is_quantity(text: &str) -> bool {
    text.len() <= MAX_QUANTITY && Quantity::parse(text).is_ok()
}

/// The number of characters of a text, as CEL's `size` counts.
pub(super) fn size(text: &str) -> usize {
    text.chars().count()
}

/// See [`DNS_LABEL`].
pub(super) fn is_dns_label(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase()) && is_dns_part(text)
}

/// See [`DNS_SUBDOMAIN`] and [`MAX_DNS_SUBDOMAIN`].
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_DNS_SUBDOMAIN && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// [`is_dns_subdomain`] in CEL.
pub(super) fn dns_subdomain() -> String {
    format!("size(self) <= {MAX_DNS_SUBDOMAIN} && self.matches('{DNS_SUBDOMAIN}')")
}

/// See [`KEY`] and [`MAX_KEY`].
pub(super) fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name(name),
        None => is_name(text),
    }
}

/// See [`LABEL_VALUE`].
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.len() <= 63 && text.bytes().all(inner) && edge(text.as_bytes().first()) && edge(text.as_bytes().last())
}

/// See [`IDENTIFIER`].
pub(super) fn is_identifier(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    name.len() <= 63 && name.bytes().all(inner) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Whether CEL's `isCIDR` takes this: an address without leading zeros, and a prefix length that fits it.
pub(super) fn is_cidr(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else {
        return false;
    };
    let number = |most: u8| {
        let canonical = prefix == "0" || !prefix.starts_with('0');
        canonical && prefix.bytes().all(|b| b.is_ascii_digit()) && prefix.parse().is_ok_and(|length: u8| length <= most)
    };
    match address.parse() {
        Ok(IpAddr::V4(_)) => number(32),
        Ok(IpAddr::V6(address)) => address.to_ipv4_mapped().is_none() && number(128),
        Err(_) => false,
    }
}

/// See [`NO_CONTROL`].
pub(super) fn has_control(text: &str) -> bool {
    text.chars().any(|c| c.is_ascii_control())
}

/// See [`SECRET_KEY`].
pub(super) fn is_secret_key(key: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=253).contains(&key.len()) && key.bytes().all(inner)
}
