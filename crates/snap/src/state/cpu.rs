//! What a program could have seen of the processor, and relies on from then on: a library chooses its code by it once, at its start.
//!
//! What must always hold: a restart on a machine that lacks any of it is refused by name; what only the kernel uses does not matter.

use std::io::{BufRead, BufReader};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// A machine, as programs see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// What the processor can do, by the kernel's names (`flags` of `/proc/cpuinfo`), without what only the kernel uses.
    pub flags: Vec<String>,
    /// Sets of registers that XSAVE stores, as a bit mask (XCR0).
    pub xcr0: u64,
    /// Where it stores each in its area: number, offset, length.
    pub layout: Vec<(u32, u32, u32)>,
    /// AT_HWCAP2
    pub hwcap2: u64,
}

/// Names of bits of AT_HWCAP2.
const HWCAP2: [&str; 2] = ["ring3mwait", "fsgsbase, switched on"];

/// What only the kernel or a hypervisor uses, what says how fast something is, and what the kernel says of itself.
const KERNELS: &str = "vme de pse msr pae mce apic mtrr pge mca pat pse36 pn dts acpi ss ht tm ia64 pbe mp nx pdpe1gb \
    constant_tsc art arch_perfmon pebs bts rep_good nopl xtopology tsc_reliable nonstop_tsc cpuid extd_apicid amd_dcm aperfmperf rapl \
    nonstop_tsc_s3 tsc_known_freq up k8 k6_mtrr dtes64 monitor ds_cpl vmx smx est tm2 cnxt_id sdbg xtpr pdcm pcid dca x2apic \
    tsc_deadline_timer hypervisor cmp_legacy svm extapic cr8_legacy ibs osvw skinit wdt nodeid_msr topoext perfctr_core perfctr_nb \
    bpext ptsc perfctr_llc mwaitx ring3mwait cpuid_fault cpb epb cat_l3 cat_l2 cdp_l3 cdp_l2 tpr_shadow flexpriority ept vpid ept_ad \
    vnmi vmmcall hw_pstate proc_feedback xcompacted pti mba smba bmec ssbd ibrs ibpb stibp ibrs_enhanced tsc_adjust smep smap invpcid \
    cqm rdt_a intel_pt cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local split_lock_detect bus_lock_detect arat dtherm ida pln pts hwp \
    hwp_notify hwp_act_window hwp_epp hwp_pkg_req hfi avic v_vmsave_vmload vgif npt lbrv svm_lock nrip_save tsc_scale vmcb_clean \
    flushbyasid decodeassists pausefilter pfthreshold x2avic v_spec_ctrl umip pku la57 sgx sgx_lc overflow_recov succor smca pconfig \
    arch_lbr ibt flush_l1d arch_capabilities core_capabilities md_clear amd_lbr_v2 perfmon_v2 sme sev sev_es sev_snp debug_swap \
    intel_ppin amd_ppin erms fsrm fzrm fsrs fsrc hle virt_ssbd amd_ssbd amd_stibp amd_ibpb cppc irperf xsaveerptr ibpb_brtype \
    cpuid_fault stibp_always_on zen invlpgb tlbi";

impl Machine {
    /// This one.
    pub fn here() -> &'static Machine {
        static HERE: OnceLock<Machine> = OnceLock::new();
        HERE.get_or_init(|| {
            let xcr0 = xcr0();
            let layout = (2..63).filter(|component| xcr0 & 1 << component != 0).map(xsave_place);
            // SAFETY: it asks for a number.
            let hwcap2 = unsafe { libc::getauxval(libc::AT_HWCAP2) };
            Machine { flags: flags(), xcr0, layout: layout.collect(), hwcap2 }
        })
    }

    /// What `before` had and this one has not, in words.
    pub fn lacks(&self, before: &Machine) -> Vec<String> {
        let mut lacking: Vec<String> = before.flags.iter().filter(|flag| !self.flags.contains(flag)).cloned().collect();
        let bits = |mask: u64| (0..64).filter(move |bit| mask & 1 << bit != 0);
        lacking.extend(bits(before.xcr0 & !self.xcr0).map(|bit| format!("the registers that XSAVE numbers {bit}")));
        for bit in bits(before.hwcap2 & !self.hwcap2) {
            lacking.push(HWCAP2.get(bit).map_or_else(|| format!("bit {bit} of AT_HWCAP2"), |name| (*name).to_owned()));
        }
        let moved = |part: &&(u32, u32, u32)| self.xcr0 & 1 << part.0 != 0 && !self.layout.contains(part);
        lacking.extend(before.layout.iter().filter(moved).map(|part| format!("the place where XSAVE stores registers {}", part.0)));
        lacking
    }
}

/// All processors have the same; the file is read no further than the first.
fn flags() -> Vec<String> {
    let Ok(file) = std::fs::File::open("/proc/cpuinfo") else { return Vec::new() };
    let line = BufReader::new(file).lines().map_while(|line| line.ok()).find(|line| line.starts_with("flags"));
    let kernels: Vec<&str> = KERNELS.split_whitespace().collect();
    let line = line.unwrap_or_default();
    let words = line.split_once(':').map_or("", |(_, words)| words);
    words.split_whitespace().filter(|word| !kernels.contains(word)).map(str::to_owned).collect()
}

#[cfg(target_arch = "x86_64")]
fn xcr0() -> u64 {
    if !std::is_x86_feature_detected!("xsave") {
        return 0;
    }
    #[target_feature(enable = "xsave")]
    fn read() -> u64 {
        // SAFETY: the register 0 is there where XSAVE is.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    // SAFETY: the processor has XSAVE, and the kernel uses it.
    unsafe { read() }
}

#[cfg(not(target_arch = "x86_64"))]
fn xcr0() -> u64 {
    0
}

/// Number, offset and length of a set of registers that XSAVE stores.
#[cfg(target_arch = "x86_64")]
fn xsave_place(component: u32) -> (u32, u32, u32) {
    let leaf = std::arch::x86_64::__cpuid_count(0xd, component);
    (component, leaf.ebx, leaf.eax)
}

#[cfg(not(target_arch = "x86_64"))]
fn xsave_place(component: u32) -> (u32, u32, u32) {
    (component, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        let here = Machine::here();
        assert!(here.flags.iter().any(|flag| flag == "sse2") && !here.flags.iter().any(|flag| flag == "smep"), "{here:?}");
        assert_eq!(here.lacks(here), Vec::<String>::new());
        assert_eq!(here.lacks(&Machine::default()), Vec::<String>::new());
        let mut other = here.clone();
        other.flags.push("avx4096".into());
        other.xcr0 |= 1 << 40;
        other.hwcap2 |= 1 << 33;
        assert_eq!(here.lacks(&other), ["avx4096", "the registers that XSAVE numbers 40", "bit 33 of AT_HWCAP2"]);
    }
}
