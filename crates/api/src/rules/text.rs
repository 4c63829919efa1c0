//! Shapes of texts, each as a regular expression (RE2, for CEL) and as a function.

use crate::quantity::Quantity;

/// A DNS-1035 label of any length.
pub(super) const DNS_LABEL: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
/// A DNS-1123 subdomain of any length.
pub(super) const DNS_SUBDOMAIN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The longest DNS-1123 subdomain.
pub(super) const MAX_DNS_SUBDOMAIN: usize = 253;
/// A key of a label or an annotation; the part before the slash of any length.
pub(super) const KEY: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// The longest key: a subdomain, a slash and a name.
pub(super) const MAX_KEY: usize = MAX_DNS_SUBDOMAIN + 1 + 63;
/// The value of a label.
pub(super) const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";
/// A text without control characters.
pub(super) const NO_CONTROL: &str = "^[^\\\\x00-\\\\x1f\\\\x7f]*$";

/// A quantity of any length, as `Quantity::parse` takes it. The API server would take longer exponents as well.
pub(super) const QUANTITY: &str = "^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$";
/// The longest quantity: more digits than 2^63 in thousand-millionths has.
pub(super) const MAX_QUANTITY: usize = 32;

/// See [`QUANTITY`] and [`MAX_QUANTITY`].
pub(super) fn is_quantity(text: &str) -> bool {
    text.len() <= MAX_QUANTITY && Quantity::parse(text).is_ok()
}

/// How many characters a text has, as CEL's `size` counts.
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

/// See [`NO_CONTROL`].
pub(super) fn has_control(text: &str) -> bool {
    text.chars().any(|c| c.is_ascii_control())
}
