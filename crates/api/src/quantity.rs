//! Kubernetes quantities (`10Gi`, `1.5G`, `500m`, `1e3`) as numbers.

/// A Kubernetes quantity, exact to a thousand-millionth and at most 2⁶³−1, as in Kubernetes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nano: i128,
}

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a quantity: write a number and a unit, such as `10Gi`")]
pub struct QuantityError {
    /// The text.
    pub text: String,
}

const NANO: i128 = 1_000_000_000;
/// The largest quantity; Kubernetes limits every quantity to it.
const MAX: i128 = i64::MAX as i128 * NANO;

impl Quantity {
    /// Reads a quantity as the API server does, except that exponents have at most two digits: longer ones only cost time.
    ///
    /// # Errors
    /// If the text is not a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text)
            .map(|nano| Self { nano })
            .ok_or_else(|| QuantityError { text: text.to_owned() })
    }

    /// The quantity as a count of bytes, rounded up; 0 if it is negative.
    pub fn bytes(self) -> u64 {
        u64::try_from(self.nano).map_or_else(
            |_| u64::try_from((self.nano.max(0) + NANO - 1) / NANO).unwrap_or(u64::MAX),
            |nano| nano.div_ceil(NANO as u64),
        )
    }

    /// The quantity in thousandths, rounded up, as the API server stores the requests of containers.
    pub const fn thousandths(self) -> i128 {
        -(-self.nano).div_euclid(NANO / 1_000)
    }

    /// This many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        let nano = bytes as i128 * NANO;
        Self {
            nano: if nano > MAX { MAX } else { nano },
        }
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::parse(text)
    }
}

/// The unit behind the number: a factor of `2^exponent` or `10^exponent`.
enum Unit {
    Binary(u32),
    Decimal(i64),
}

fn parse(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let nano = scale(whole, fraction, unit(suffix)?);
    Some(if negative { -nano } else { nano })
}

fn unit(suffix: &str) -> Option<Unit> {
    Some(match suffix {
        "" => Unit::Decimal(0),
        "Ki" => Unit::Binary(10),
        "Mi" => Unit::Binary(20),
        "Gi" => Unit::Binary(30),
        "Ti" => Unit::Binary(40),
        "Pi" => Unit::Binary(50),
        "Ei" => Unit::Binary(60),
        "n" => Unit::Decimal(-9),
        "u" => Unit::Decimal(-6),
        "m" => Unit::Decimal(-3),
        "k" => Unit::Decimal(3),
        "M" => Unit::Decimal(6),
        "G" => Unit::Decimal(9),
        "T" => Unit::Decimal(12),
        "P" => Unit::Decimal(15),
        "E" => Unit::Decimal(18),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            // `+5` and `-5` are exponents, `+-5` is not.
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || digits.len() > 2 || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            Unit::Decimal(exponent.parse().ok()?)
        }
    })
}

/// `whole.fraction` in that unit, in thousand-millionths, rounded up, at most [`MAX`].
fn scale(whole: &str, fraction: &str, unit: Unit) -> i128 {
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    let (power, factor) = match unit {
        Unit::Binary(bits) => (0, 1i128 << bits),
        Unit::Decimal(power) => (power, 1),
    };
    // The value is `digits * factor * 10^shift` thousand-millionths.
    let shift = power + 9 - i64::try_from(fraction.len()).unwrap_or(i64::MAX);
    let length = i64::try_from(digits.len()).unwrap_or(i64::MAX);
    if length.saturating_add(shift) > 29 {
        return MAX; // at least 10^29, and MAX is below 10^28
    }
    let kept = usize::try_from((length + shift).clamp(0, length)).unwrap_or_default();
    // Digits below a millionth of a thousand-millionth cannot matter but for rounding up, even times 2^60.
    let spare = (digits.len() - kept).min(18);
    let head: i128 = digits[..kept + spare].parse().unwrap_or(MAX);
    let rest = digits[kept + spare..].bytes().any(|digit| digit != b'0');
    let exponent = shift + length - i64::try_from(kept + spare).unwrap_or_default();
    let Some(scaled) = head.checked_mul(factor) else {
        return MAX;
    };
    let nano = if exponent >= 0 {
        let Ok(exponent) = u32::try_from(exponent) else {
            return MAX;
        };
        10i128
            .checked_pow(exponent)
            .and_then(|power| scaled.checked_mul(power))
            .unwrap_or(MAX)
    } else {
        let divisor = u32::try_from(-exponent)
            .ok()
            .and_then(|e| 10i128.checked_pow(e))
            .unwrap_or(i128::MAX);
        scaled / divisor + i128::from(scaled % divisor != 0 || rest)
    };
    nano.min(MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("1.", 1),
            (".5Ki", 512),
            ("1.5Gi", 1_610_612_736),
            ("10G", 10_000_000_000),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("1E", 1_000_000_000_000_000_000),
            ("+2Mi", 2_097_152),
            ("-1Gi", 0),
            ("100m", 1),
            ("1n", 1),
            ("1e-30", 1),
            ("0.0000000000000000000001", 1),
            ("1e30", 9_223_372_036_854_775_807),
            ("8Ei", 9_223_372_036_854_775_807),
            (
                "123456789012345678901234567890123456789012345",
                9_223_372_036_854_775_807,
            ),
            ("00000000000000000000000000000000000000000000000007k", 7_000),
            ("0e99", 0),
            ("1e99", 9_223_372_036_854_775_807),
            ("1e-99", 1),
            ("1.000000000000000000000000000000000000000000001Ki", 1_025),
        ] {
            assert_eq!(Quantity::parse(text).map(Quantity::bytes), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn thousandths() {
        for (text, thousandths) in [
            ("62.5m", 63),
            ("63m", 63),
            ("1n", 1),
            ("0", 0),
            ("-1.5m", -1),
            ("2", 2_000),
        ] {
            assert_eq!(
                Quantity::parse(text).map(Quantity::thousandths),
                Ok(thousandths),
                "{text}"
            );
        }
    }

    #[test]
    fn no_quantities() {
        for text in [
            "",
            "Gi",
            "1gi",
            "1 Gi",
            "1GiB",
            "1K",
            "abc",
            "1.2.3",
            "--1",
            "1e",
            "1e+-5",
            "1e1.5",
            "1e100",
            "1e-100",
            "1e2147483647",
            "٣",
            "1Gi\n",
        ] {
            assert!(Quantity::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn order() {
        let of = |text: &str| Quantity::parse(text).unwrap();
        assert!(of("1Gi") > of("1G"));
        assert!(of("-1") < of("0"));
        assert_eq!(of("1024Mi"), of("1Gi"));
        assert_eq!(of("1Gi"), Quantity::from_bytes(1 << 30));
    }
}
