//! Amounts of resources, as Kubernetes writes them.

use std::fmt;
use std::str::FromStr;

/// An amount in billionths, the finest that Kubernetes knows.
///
/// Source: `ParseQuantity` of k8s.io/apimachinery. What is finer is rounded away from zero, and what
/// is beyond 2^63 - 1 is that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Quantity(i128);

impl std::ops::Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Quantity {
    /// Writes it in the largest decimal unit that needs no point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, suffix) in [(BILLION, ""), (1_000_000, "m"), (1_000, "u")] {
            if self.0 % unit == 0 {
                return write!(f, "{}{suffix}", self.0 / unit);
            }
        }
        write!(f, "{}n", self.0)
    }
}

/// The text is no quantity, or one that is too long to be read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a quantity")]
pub(crate) struct NotAQuantity;

const BILLION: i128 = 1_000_000_000;
const MAX: i128 = (i64::MAX as i128) * BILLION;

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let digits =
            |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (whole, rest) = unsigned.split_at(digits(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(NotAQuantity);
        }
        let fraction = fraction.trim_end_matches('0');
        let scale = Scale::of(suffix)?;
        let written = format!("{whole}{fraction}");
        let written = written.trim_start_matches('0');
        if written.is_empty() {
            return Ok(Self(0));
        }
        let mantissa: i128 = written.parse().map_err(|_| NotAQuantity)?;
        let places = i32::try_from(fraction.len()).map_err(|_| NotAQuantity)?;
        let amount = scale.apply(mantissa, places)?.min(MAX);
        Ok(Self(if negative { -amount } else { amount }))
    }
}

/// What a suffix stands for.
#[derive(Clone, Copy)]
struct Scale {
    twos: u32,
    tens: i32,
}

impl Scale {
    fn of(suffix: &str) -> Result<Self, NotAQuantity> {
        let tens = |tens| Ok(Self { twos: 0, tens });
        let twos = |twos| Ok(Self { twos, tens: 0 });
        match suffix {
            "n" => tens(-9),
            "u" => tens(-6),
            "m" => tens(-3),
            "" => tens(0),
            "k" => tens(3),
            "M" => tens(6),
            "G" => tens(9),
            "T" => tens(12),
            "P" => tens(15),
            "E" => tens(18),
            "Ki" => twos(10),
            "Mi" => twos(20),
            "Gi" => twos(30),
            "Ti" => twos(40),
            "Pi" => twos(50),
            "Ei" => twos(60),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E']).ok_or(NotAQuantity)?;
                // `parse` would take what Kubernetes does not, a sign alone for instance.
                let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(NotAQuantity);
                }
                let exponent: i32 = exponent.parse().map_err(|_| NotAQuantity)?;
                tens(exponent)
            }
        }
    }

    /// `mantissa`, which is above 0 and has `places` digits after the point, in billionths.
    fn apply(self, mantissa: i128, places: i32) -> Result<i128, NotAQuantity> {
        let tens = self.tens.saturating_add(9).saturating_sub(places);
        let exponent = tens.unsigned_abs();
        if tens >= 0 {
            let factor = 10_i128
                .checked_pow(exponent)
                .and_then(|f| f.checked_mul(1 << self.twos));
            // More than fits is more than the largest amount.
            return Ok(factor.and_then(|f| mantissa.checked_mul(f)).unwrap_or(MAX));
        }
        let scaled = mantissa.checked_mul(1 << self.twos).ok_or(NotAQuantity)?;
        Ok(match 10_i128.checked_pow(exponent) {
            Some(divisor) => scaled / divisor + i128::from(scaled % divisor != 0),
            None => 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("0", 0)]
    #[case("1", BILLION)]
    #[case("100m", 100_000_000)]
    #[case("0.1", 100_000_000)]
    #[case(".1", 100_000_000)]
    #[case("1.", BILLION)]
    #[case("+1", BILLION)]
    #[case("-1", -BILLION)]
    #[case("1Ki", 1024 * BILLION)]
    #[case("0.5Gi", 512 * 1024 * 1024 * BILLION)]
    #[case("1e3", 1000 * BILLION)]
    #[case("1E-3", 1_000_000)]
    #[case("1E", 1_000_000_000_000_000_000 * BILLION)]
    #[case::rounded_up("0.1n", 1)]
    #[case::rounded_up_far("1e-400", 1)]
    #[case::the_largest("8Ei", MAX)]
    #[case::too_large("1e400", MAX)]
    fn reads(#[case] text: &str, #[case] billionths: i128) {
        assert_eq!(text.parse(), Ok(Quantity(billionths)));
    }

    #[rstest::rstest]
    #[case("")]
    #[case("Mi")]
    #[case(".")]
    #[case("1 Mi")]
    #[case("1mi")]
    #[case("1K")]
    #[case("1e")]
    #[case("1e+")]
    #[case("1e1.5")]
    #[case("--1")]
    #[case("1\n")]
    #[case("١")]
    fn refuses(#[case] text: &str) {
        assert_eq!(text.parse::<Quantity>(), Err(NotAQuantity));
    }

    #[rstest::rstest]
    #[case("1Ki", "1024")]
    #[case("0.5", "500m")]
    #[case("1.5u", "1500n")]
    #[case("0", "0")]
    fn writes(#[case] quantity: Quantity, #[case] text: &str) {
        assert_eq!(quantity.to_string(), text);
        assert_eq!(text.parse(), Ok(quantity));
    }

    #[rstest::rstest]
    #[case("1Gi", "1024Mi")]
    #[case("1.5Gi", "1536Mi")]
    #[case("1G", "1000M")]
    #[case("100m", "0.1")]
    fn the_same_in_other_units(#[case] one: Quantity, #[case] other: Quantity) {
        assert_eq!(one, other);
    }
}
