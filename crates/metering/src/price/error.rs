//! What is wrong with RateCards.

/// Why a part of RateCards cannot be applied. The text says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// Two cards of a currency have a target in common, or both have none.
    #[error(
        "RateCards {first} and {second} both have prices in {currency} for {target}; put the prices into one of them, or change its targets"
    )]
    SameTarget {
        /// Name of one card.
        first: String,
        /// Name of the other card.
        second: String,
        /// Their currency.
        currency: String,
        /// Kind and name of the target; `all usage` if they have none.
        target: String,
    },
    /// Two price lists of a card are effective from the same day.
    #[error("RateCard {card}: spec.prices: {day} is the effectiveFrom of two price lists; remove one of them")]
    SameDay {
        /// Name of the card.
        card: String,
        /// The day.
        day: String,
    },
    /// Two rates of a price list are for the same.
    #[error("RateCard {card}: spec.prices: the price list from {from} has two rates for {rate}; remove one of them")]
    SameRate {
        /// Name of the card.
        card: String,
        /// First day of the list.
        from: String,
        /// What they are for.
        rate: String,
    },
    /// There is no such day.
    #[error("RateCard {card}: spec.prices: effectiveFrom {day:?} is not a day; write it as in 2026-01-31")]
    InvalidDay {
        /// Name of the card.
        card: String,
        /// The day.
        day: String,
    },
    /// A price is not a number with at most nine decimals.
    #[error("RateCard {card}: spec.prices: {price:?} is not a price; write it as in 2.10")]
    InvalidPrice {
        /// Name of the card.
        card: String,
        /// The price.
        price: String,
    },
}
