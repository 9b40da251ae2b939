//! How bytes are divided.

use super::turn::{parts, places};
use proptest::prelude::*;

proptest! {
    #[test]
    fn parts_are_all_of_it_and_split_no_unit(units in 0..200usize, unit in 1..9usize, count in 1..20usize) {
        let parts = parts(units * unit, unit, count);
        prop_assert_eq!(parts.len(), count);
        let mut end = 0;
        for part in parts {
            prop_assert_eq!(part.start, end);
            prop_assert!(part.len() % unit == 0 && part.len() <= (units / count + 1) * unit);
            end = part.end;
        }
        prop_assert_eq!(end, units * unit);
    }
}

#[test]
fn places_lie_one_behind_the_other() {
    assert_eq!(places(&[3, 0, 2]), [0..3, 3..3, 3..5]);
}
