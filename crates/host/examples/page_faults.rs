//! What a served page fault costs the thread that meets it, by each way that this machine has:
//! pages that are filled when loaded from, opened when stored to, and released. Beside it what the
//! handler's own calls cost.
//!
//! `cargo run --release -p vmmc-host --example page_faults`

use std::time::Instant;
use vmmc_host::fault::{Answer, Fault, Faults, Kind, Registration, Way};
use vmmc_host::{Access, Region, Reservation};

/// Below the bound on ranges by signal: each page is one until it has the access of its neighbours.
const PAGES: u64 = 10_000;
const PAGE: u64 = 4096;
/// Each after a warm-up.
const ROUNDS: usize = 9;

fn main() {
    let faults = Faults::get().expect("not a fork");
    println!("userfaultfd: {:?}", faults.offers());
    println!("{PAGES} pages, {ROUNDS} rounds; us a page: median, least and most");
    let ways = if faults.best_way() == Way::Signal { &[false][..] } else { &[false, true] };
    for memory_is_there in [true, false] {
        for is_window in ways {
            measure(*is_window, memory_is_there);
        }
    }
}

fn measure(is_window: bool, memory_is_there: bool) {
    let place = Reservation::new(PAGES * PAGE).expect("addresses");
    let reserved = if memory_is_there { PAGES * PAGE } else { PAGE };
    let memory = Region::create_in_part(PAGES * PAGE, reserved).expect("memory");
    let registration = register(is_window, &place, &memory);
    let with = if memory_is_there { "memory there" } else { "memory made" };
    println!("{:?}, {with}:", registration.way());
    let mut costs: [Vec<f64>; 5] = Default::default();
    for _ in 0..=ROUNDS {
        let steps: [&dyn Fn(u64); 5] = [
            &|page| drop(place.load(page * PAGE)),
            &|page| drop(place.store(page * PAGE, 1)),
            &|page| place.protect(page * PAGE, PAGE, Access::Read).expect("filled"),
            &|page| place.protect(page * PAGE, PAGE, Access::ReadWrite).expect("filled"),
            &|page| place.release(page * PAGE, PAGE).expect("filled"),
        ];
        costs.iter_mut().zip(steps).for_each(|(costs, step)| costs.push(each(step)));
        if !memory_is_there {
            memory.release(0, PAGES * PAGE);
        }
    }
    let names = ["fill, by the fault", "open, by the fault", "protect", "open", "release"];
    for (name, mut costs) in names.into_iter().zip(costs) {
        costs.remove(0);
        costs.sort_by(f64::total_cmp);
        println!("{name:>24} {:>8.2} {:>8.2} {:>8.2}", costs[ROUNDS / 2], costs[0], costs[ROUNDS - 1]);
    }
}

/// One handler for either way.
fn register(is_window: bool, place: &Reservation, memory: &Region) -> Registration {
    let (faults, range) = (Faults::get().expect("not a fork"), 0..PAGES * PAGE);
    let (mine, behind) = (place.clone(), memory.clone());
    let serve = move |fault: &Fault| {
        let page = fault.page();
        let done = match fault.kind {
            Kind::Missing => mine.fill(page, &behind, page, PAGE, Access::Read),
            _ => mine.protect(page, PAGE, Access::ReadWrite),
        };
        if done.is_ok() { Answer::Served } else { Answer::Refused }
    };
    let registered = match is_window {
        true => faults.register_window(place, range, memory, 0, serve),
        false => faults.register(place, range, serve),
    };
    registered.expect("a new range")
}

fn each(touch: &dyn Fn(u64)) -> f64 {
    let start = Instant::now();
    (0..PAGES).for_each(touch);
    start.elapsed().as_secs_f64() * 1e6 / PAGES as f64
}
