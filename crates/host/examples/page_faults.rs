//! What a served page fault costs the thread that meets it, beside what its handler does: pages
//! that are filled when loaded from, and opened when stored to.
//!
//! `cargo run --release -p vmmc-host --example page_faults`

use std::time::Instant;
use vmmc_host::fault::{Answer, Fault, Faults, Kind};
use vmmc_host::{Access, Region, Reservation};

/// Below the bound on ranges: each page is one until it has the access of its neighbours.
const PAGES: u64 = 10_000;
const PAGE: u64 = 4096;

fn main() {
    let place = Reservation::new(PAGES * PAGE).expect("addresses");
    let memory = Region::create(PAGES * PAGE).expect("memory");
    let (theirs, behind) = (place.clone(), memory.clone());
    let serve = move |fault: &Fault| {
        let page = fault.page();
        let done = match fault.kind {
            Kind::Missing => theirs.fill(page, &behind, page, PAGE, Access::Read),
            _ => theirs.protect(page, PAGE, Access::ReadWrite),
        };
        if done.is_ok() { Answer::Served } else { Answer::Refused }
    };
    let faults = Faults::get().expect("not a fork");
    let registration = faults.register(&place, 0..PAGES * PAGE, serve).expect("a new range");
    println!("userfaultfd: {:?}", faults.offers());
    println!("served by {:?}, {PAGES} pages, us a page:", registration.way());
    println!("{:>24} {:>8.2}", "fill, by the fault", each(|page| drop(place.load(page * PAGE))));
    println!("{:>24} {:>8.2}", "open, by the fault", each(|page| drop(place.store(page * PAGE, 1))));
    drop(registration);
    let fill = |page| place.fill(page * PAGE, &memory, page * PAGE, PAGE, Access::Read).expect("pages");
    println!("{:>24} {:>8.2}", "fill alone", each(fill));
    let open = |page| place.protect(page * PAGE, PAGE, Access::ReadWrite).expect("filled");
    println!("{:>24} {:>8.2}", "open alone", each(open));
}

fn each(mut touch: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..PAGES).for_each(&mut touch);
    start.elapsed().as_secs_f64() * 1e6 / PAGES as f64
}
