/*
 * The micro guest: a kernel of a few KB for virtual machines that only have to be there, be moved
 * and fail in known ways. QEMU loads it with -kernel (multiboot, 32 bit); machine types pc and q35.
 *
 * It prints `tick N` on COM1 once per second, N being the seconds since its boot, and sleeps in
 * between. It obeys the ACPI power button and ACPI requests to give up a PCI device. Words on the
 * kernel command line make it do more; several combine, unknown ones are ignored:
 *
 *   dirty=RATE  writes to RATE MiB of memory per second, spread over the second
 *   ws=MIB      the memory that `dirty` writes to, again and again (default: all there is)
 *   panic=S     reports a panic after S seconds (pvpanic, ISA) and stops
 *   wdt=W       arms the watchdog (i6300esb) with W seconds and never pets it
 *   hang=S      stops after S seconds, deaf to interrupts; with `wdt` it pets the watchdog every
 *               second until then, so the watchdog fires W seconds after the hang
 *   reboot=S    resets the machine after S seconds (in each boot, since the command line stays)
 *   off=S       powers off after S seconds
 *   ioerr=S     from S seconds on writes to 64 KiB of the primary IDE disk per second (type pc
 *               only: q35 has no IDE), so that a disk which fails or is full is noticed
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

static inline void out8(u16 port, u8 value)
{
    __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}

static inline void out16(u16 port, u16 value)
{
    __asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(port));
}

static inline void out32(u16 port, u32 value)
{
    __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"(port));
}

static inline u8 in8(u16 port)
{
    u8 value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static inline u16 in16(u16 port)
{
    u16 value;
    __asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static inline u32 in32(u16 port)
{
    u32 value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void stop_for_ever(void)
{
    for (;;)
        __asm__ volatile("cli; hlt");
}

/* ---- Entry ---------------------------------------------------------------------------------- */

#define MULTIBOOT_MAGIC 0x1BADB002u
#define MULTIBOOT_WANT_MEMORY 2u /* asks for the memory size */
#define MULTIBOOT_HAS_MEMORY 1u
#define MULTIBOOT_HAS_COMMAND_LINE 4u

struct multiboot {
    u32 flags;
    u32 lower_kib; /* memory below 640 KiB */
    u32 upper_kib; /* memory above 1 MiB */
    u32 boot_device;
    const char *command_line; /* the kernel's file name comes first */
};

__attribute__((section(".multiboot"), used)) static const u32 multiboot_header[] = {
    MULTIBOOT_MAGIC,
    MULTIBOOT_WANT_MEMORY,
    -(MULTIBOOT_MAGIC + MULTIBOOT_WANT_MEMORY),
};

__attribute__((used)) static u8 stack[4096] __attribute__((aligned(16)));

/* The loader gives no stack, and the address of its information in EBX. */
__asm__(".text\n"
        ".globl start\n"
        "start:\n"
        "    movl $stack + 4096, %esp\n"
        "    pushl %ebx\n"
        "    call run\n");

/* ---- Serial console ------------------------------------------------------------------------- */

#define COM1 0x3F8
#define COM_DATA (COM1 + 0)
#define COM_INTERRUPTS (COM1 + 1)
#define COM_LINE (COM1 + 3)
#define COM_STATUS (COM1 + 5)
#define COM_LINE_8N1 0x03
#define COM_LINE_DIVISOR 0x80 /* the first two ports are the divisor */
#define COM_STATUS_EMPTY 0x20

static void serial_init(void)
{
    out8(COM_INTERRUPTS, 0);
    out8(COM_LINE, COM_LINE_DIVISOR);
    out8(COM_DATA, 1); /* 115200 baud */
    out8(COM_INTERRUPTS, 0);
    out8(COM_LINE, COM_LINE_8N1);
}

static void print(const char *text)
{
    for (; *text; text++) {
        while (!(in8(COM_STATUS) & COM_STATUS_EMPTY))
            ;
        out8(COM_DATA, *text);
    }
}

static void print_number(u32 number)
{
    char digits[11];
    char *at = digits + sizeof digits - 1;
    *at = 0;
    do {
        *--at = '0' + number % 10;
        number /= 10;
    } while (number);
    print(at);
}

/* One line: a text, a number, a text. */
static void say(const char *before, u32 number, const char *after)
{
    print(before);
    print_number(number);
    print(after);
    print("\n");
}

/* ---- Command line --------------------------------------------------------------------------- */

#define ABSENT 0xFFFFFFFFu /* as a time it means: never */

/* The number of the word `NAME=NUMBER`. */
static u32 option(const char *line, const char *name)
{
    while (*line) {
        const char *wanted = name;
        while (*wanted && *line == *wanted)
            line++, wanted++;
        if (!*wanted && *line == '=' && line[1] >= '0' && line[1] <= '9') {
            u32 number = 0;
            for (line++; *line >= '0' && *line <= '9'; line++)
                number = number * 10 + (*line - '0');
            return number;
        }
        while (*line && *line != ' ')
            line++;
        while (*line == ' ')
            line++;
    }
    return ABSENT;
}

/* ---- Interrupts: the interval timer, 100 times per second, and the disk ---------------------- */

#define HZ 100
#define PIT_DATA 0x40
#define PIT_COMMAND 0x43
#define PIT_RATE_GENERATOR 0x34 /* channel 0, both bytes, mode 2 */
#define PIT_FREQUENCY 1193182

#define PIC1_COMMAND 0x20
#define PIC1_DATA 0x21
#define PIC2_COMMAND 0xA0
#define PIC2_DATA 0xA1
#define PIC_INIT 0x11
#define PIC_8086 0x01
#define PIC_END_OF_INTERRUPT 0x20
#define PIC1_VECTOR 0x20 /* the first 32 vectors are the processor's exceptions */
#define PIC2_VECTOR 0x28
#define PIC1_LINE_PIC2 2 /* the second controller is at this line of the first */
#define TIMER_VECTOR (PIC1_VECTOR + 0)
#define PIC2_LINE_DISK 6
#define DISK_VECTOR (PIC2_VECTOR + PIC2_LINE_DISK)

static volatile u32 ticks;

struct frame;

__attribute__((interrupt)) static void timer_interrupt(struct frame *frame)
{
    (void)frame;
    ticks++;
    out8(PIC1_COMMAND, PIC_END_OF_INTERRUPT);
}

#define IDE_COMMAND 0x1F7 /* reads as the status, which also ends the disk's interrupt */

static volatile u32 disk_done;
static volatile u8 disk_status;

__attribute__((interrupt)) static void disk_interrupt(struct frame *frame)
{
    (void)frame;
    disk_status = in8(IDE_COMMAND);
    disk_done = 1;
    out8(PIC2_COMMAND, PIC_END_OF_INTERRUPT);
    out8(PIC1_COMMAND, PIC_END_OF_INTERRUPT);
}

/* Code and data of 4 GiB each: what the loader left may not stay valid, and an interrupt loads
 * its code segment from here. */
static const u32 segments[] = { 0, 0, 0x0000FFFF, 0x00CF9A00, 0x0000FFFF, 0x00CF9200 };
#define CODE_SEGMENT 0x08

/* No exception has a gate: one would be a bug, and resets the machine, which is seen. */
static u32 gates[(DISK_VECTOR + 1) * 2];
#define INTERRUPT_GATE 0x8E00

static void set_gate(u32 vector, void (*handler)(struct frame *))
{
    gates[vector * 2] = CODE_SEGMENT << 16 | ((u32)handler & 0xFFFF);
    gates[vector * 2 + 1] = ((u32)handler & 0xFFFF0000) | INTERRUPT_GATE;
}

struct __attribute__((packed)) table {
    u16 limit;
    const void *base;
};

static void interrupts_init(void)
{
    const struct table segment_table = { sizeof segments - 1, segments };
    const struct table gate_table = { sizeof gates - 1, gates };

    set_gate(TIMER_VECTOR, timer_interrupt);
    set_gate(DISK_VECTOR, disk_interrupt);
    __asm__ volatile("lgdt %0\n"
                     "ljmp %2, $1f\n"
                     "1: movw %w3, %%ds\n"
                     "movw %w3, %%es\n"
                     "movw %w3, %%ss\n"
                     "lidt %1"
                     ::"m"(segment_table), "m"(gate_table), "i"(CODE_SEGMENT), "r"(0x10)
                     : "memory");

    out8(PIC1_COMMAND, PIC_INIT);
    out8(PIC2_COMMAND, PIC_INIT);
    out8(PIC1_DATA, PIC1_VECTOR);
    out8(PIC2_DATA, PIC2_VECTOR);
    out8(PIC1_DATA, 1 << PIC1_LINE_PIC2);
    out8(PIC2_DATA, PIC1_LINE_PIC2);
    out8(PIC1_DATA, PIC_8086);
    out8(PIC2_DATA, PIC_8086);
    /* Masks: only the timer and the disk may interrupt. */
    out8(PIC1_DATA, (u8)~(1 | 1 << PIC1_LINE_PIC2));
    out8(PIC2_DATA, (u8)~(1 << PIC2_LINE_DISK));

    out8(PIT_COMMAND, PIT_RATE_GENERATOR);
    out8(PIT_DATA, (PIT_FREQUENCY / HZ) & 0xFF);
    out8(PIT_DATA, (PIT_FREQUENCY / HZ) >> 8);
    __asm__ volatile("sti");
}

/* ---- PCI configuration ---------------------------------------------------------------------- */

#define PCI_ADDRESS 0xCF8
#define PCI_DATA 0xCFC
#define PCI_ENABLE 0x80000000u
#define PCI_COMMAND 0x04
#define PCI_COMMAND_MEMORY 0x02
#define PCI_BAR0 0x10

/* A slot is bus * 32 + device; function 0 of it is all that is needed here. */
#define PCI_SLOTS (256 * 32)

static u16 pci_select(u32 slot, u32 offset)
{
    out32(PCI_ADDRESS, PCI_ENABLE | slot << 11 | (offset & ~3u));
    return PCI_DATA + (offset & 3);
}

static u32 pci_read32(u32 slot, u32 offset) { return in32(pci_select(slot, offset)); }
static void pci_write16(u32 slot, u32 offset, u16 value) { out16(pci_select(slot, offset), value); }
static void pci_write8(u32 slot, u32 offset, u8 value) { out8(pci_select(slot, offset), value); }

/* ---- Power ---------------------------------------------------------------------------------- */

/* Where SeaBIOS puts the ACPI registers, on both machine types. */
#define ACPI_STATUS 0x600
#define ACPI_ENABLE 0x602
#define ACPI_CONTROL 0x604
#define ACPI_POWER_BUTTON 0x0100
#define ACPI_SOFT_OFF 0x2000 /* sleep now, type 0 */

#define RESET_CONTROL 0xCF9
#define RESET_HARD 0x02
#define RESET_NOW 0x04

static void power_button_init(void)
{
    out16(ACPI_STATUS, 0xFFFF); /* writing ones clears what is left of a former boot */
    out16(ACPI_ENABLE, ACPI_POWER_BUTTON);
}

static void power_off(void)
{
    out16(ACPI_CONTROL, ACPI_SOFT_OFF);
    stop_for_ever();
}

static void poll_power_button(void)
{
    if (in16(ACPI_STATUS) & ACPI_POWER_BUTTON) {
        print("power button\n");
        power_off();
    }
}

static void reset(void)
{
    out8(RESET_CONTROL, RESET_HARD);
    out8(RESET_CONTROL, RESET_HARD | RESET_NOW);
    stop_for_ever();
}

/* ---- PCI unplug ----------------------------------------------------------------------------- */

/* The registers that QEMU's ACPI tables use; their place depends on the chipset. */
#define HOST_BRIDGE_PC 0x12378086u
#define HOST_BRIDGE_Q35 0x29C08086u
#define UNPLUG_PC 0xAE00
#define UNPLUG_Q35 0x0CC0
#define UNPLUG_REQUESTS 0x04 /* a bit per slot of the selected bus */
#define UNPLUG_EJECT 0x08
#define UNPLUG_BUS 0x10
#define UNPLUG_BUSES 40 /* more than libvirt makes root ports for one domain */

static u16 unplug;

static void unplug_init(void)
{
    switch (pci_read32(0, 0)) {
    case HOST_BRIDGE_PC: unplug = UNPLUG_PC; break;
    case HOST_BRIDGE_Q35: unplug = UNPLUG_Q35; break;
    }
}

static void poll_unplug(void)
{
    if (!unplug)
        return;
    for (u32 bus = 0; bus < UNPLUG_BUSES; bus++) {
        out32(unplug + UNPLUG_BUS, bus);
        u32 requests = in32(unplug + UNPLUG_REQUESTS);
        if (requests == 0xFFFFFFFF) /* nothing answers: the machine has no ACPI hotplug */
            return;
        for (u32 slot = 0; slot < 32; slot++)
            if (requests & 1u << slot) {
                say("eject slot ", slot, "");
                out32(unplug + UNPLUG_EJECT, 1u << slot);
            }
    }
}

/* ---- Watchdog (i6300esb) -------------------------------------------------------------------- */

#define WATCHDOG_ID 0x25AB8086u
#define WATCHDOG_CONFIG 0x60
#define WATCHDOG_CONFIG_NO_INTERRUPT 0x03 /* the first stage passes silently */
#define WATCHDOG_LOCK 0x68
#define WATCHDOG_LOCK_ENABLE 0x02
#define WATCHDOG_TIMER1 0x00
#define WATCHDOG_TIMER2 0x04
#define WATCHDOG_RELOAD 0x0C
#define WATCHDOG_RELOAD_NOW 0x100

static u32 watchdog; /* the address of its registers; 0: none */

/* Each write to a register must follow these two. */
static void watchdog_unlock(void)
{
    *(volatile u16 *)(watchdog + WATCHDOG_RELOAD) = 0x80;
    *(volatile u16 *)(watchdog + WATCHDOG_RELOAD) = 0x86;
}

static void watchdog_pet(void)
{
    watchdog_unlock();
    *(volatile u16 *)(watchdog + WATCHDOG_RELOAD) = WATCHDOG_RELOAD_NOW;
}

static void watchdog_arm(u32 seconds)
{
    for (u32 slot = 0; slot < PCI_SLOTS; slot++) {
        if (pci_read32(slot, 0) != WATCHDOG_ID)
            continue;
        watchdog = pci_read32(slot, PCI_BAR0) & ~0xFu;
        pci_write16(slot, PCI_COMMAND, PCI_COMMAND_MEMORY);
        pci_write16(slot, WATCHDOG_CONFIG, WATCHDOG_CONFIG_NO_INTERRUPT);
        /* It counts in units of about 1 ms and fires after two stages: half the time for each. */
        watchdog_unlock();
        *(volatile u32 *)(watchdog + WATCHDOG_TIMER1) = seconds << 9;
        watchdog_unlock();
        *(volatile u32 *)(watchdog + WATCHDOG_TIMER2) = seconds << 9;
        watchdog_pet();
        pci_write8(slot, WATCHDOG_LOCK, WATCHDOG_LOCK_ENABLE);
        say("watchdog armed with ", seconds, " s");
        return;
    }
    print("no watchdog found\n");
}

/* ---- Panic ---------------------------------------------------------------------------------- */

#define PVPANIC 0x505
#define PVPANIC_PANICKED 0x01

static void panic(void)
{
    print("panic\n");
    out8(PVPANIC, PVPANIC_PANICKED);
    stop_for_ever();
}

/* ---- Disk (primary IDE, programmed I/O) ----------------------------------------------------- */

#define IDE_DATA 0x1F0
#define IDE_COUNT 0x1F2
#define IDE_LBA0 0x1F3
#define IDE_LBA1 0x1F4
#define IDE_LBA2 0x1F5
#define IDE_DEVICE 0x1F6
#define IDE_DEVICE_FIRST_LBA 0xE0
#define IDE_IDENTIFY 0xEC
#define IDE_WRITE 0x30
#define IDE_FLUSH 0xE7
#define IDE_BUSY 0x80
#define IDE_FAULT 0x20
#define IDE_ERROR 0x01
#define IDE_NO_CONTROLLER 0xFF
#define IDE_SECTOR_WORDS 256
#define IDE_IDENTIFY_SECTORS 60 /* the word of the answer where the size begins */

/* One sector of each of the next 16 pages: a small file system is full soon. */
#define DISK_WRITES 16
#define DISK_STEP_SECTORS 8

/* Whether there is a disk that takes it. */
static int disk_command(u8 command, u32 sector)
{
    out8(IDE_DEVICE, IDE_DEVICE_FIRST_LBA | (sector >> 24 & 0xF));
    u8 status = in8(IDE_COMMAND);
    if (status == 0 || status == IDE_NO_CONTROLLER)
        return 0;
    out8(IDE_COUNT, 1);
    out8(IDE_LBA0, sector);
    out8(IDE_LBA1, sector >> 8);
    out8(IDE_LBA2, sector >> 16);
    disk_done = 0;
    out8(IDE_COMMAND, command);
    return 1;
}

/* Whether the disk said within 5 seconds that all is well. Its interrupt is what counts: while
 * QEMU has the machine stopped for an I/O error, the status looks as if all were done. */
static int disk_wait(void)
{
    u32 since = ticks;
    while (!disk_done && ticks - since < 5 * HZ)
        __asm__ volatile("hlt");
    return disk_done && !(disk_status & (IDE_BUSY | IDE_FAULT | IDE_ERROR));
}

static u32 disk_sectors(void)
{
    u32 sectors = 0;
    if (!disk_command(IDE_IDENTIFY, 0) || !disk_wait())
        return 0;
    for (u32 word = 0; word < IDE_SECTOR_WORDS; word++) {
        u32 value = in16(IDE_DATA);
        if (word == IDE_IDENTIFY_SECTORS)
            sectors = value;
        if (word == IDE_IDENTIFY_SECTORS + 1)
            sectors |= value << 16;
    }
    return sectors;
}

static int disk_write_sector(u32 sector)
{
    if (!disk_command(IDE_WRITE, sector))
        return 0;
    /* It asks for the data at once, without an interrupt. */
    while (in8(IDE_COMMAND) & IDE_BUSY)
        ;
    for (u32 word = 0; word < IDE_SECTOR_WORDS; word++)
        out16(IDE_DATA, 0xA5A5);
    return disk_wait();
}

static void disk_write(void)
{
    static u32 sector;
    u32 sectors = disk_sectors();
    int well = 1;
    if (!sectors) {
        print("no disk\n");
        return;
    }
    for (u32 i = 0; i < DISK_WRITES && well; i++) {
        sector += DISK_STEP_SECTORS;
        if (sector >= sectors)
            sector = 0;
        well = disk_write_sector(sector);
    }
    /* Else a cache below may keep the bad news. */
    if (well && disk_command(IDE_FLUSH, 0))
        well = disk_wait();
    say("disk write up to sector ", sector, well ? " ok" : " failed");
}

/* ---- Memory --------------------------------------------------------------------------------- */

#define PAGE 4096u
#define PAGES_PER_MIB 256u
#define FREE_FROM_MIB 4u /* below: this program and what the loader gave it */
#define FIRMWARE_MIB 1u  /* at the top: tables of the firmware */

static u32 dirty_rate;  /* pages per second */
static u32 dirty_pages; /* of the working set */

static void dirty_init(u32 memory_mib, u32 rate_mib, u32 set_mib)
{
    u32 reserved = FREE_FROM_MIB + FIRMWARE_MIB;
    u32 most = memory_mib > reserved ? memory_mib - reserved : 0;
    if (rate_mib == ABSENT || !most || !set_mib)
        return;
    if (set_mib > most)
        set_mib = most;
    dirty_rate = rate_mib * PAGES_PER_MIB;
    dirty_pages = set_mib * PAGES_PER_MIB;
}

/* What is due after so many ticks. One word makes a page differ, and no page is all zeros, which
 * a migration would send in a few bytes. */
static void dirty(u32 elapsed)
{
    static u32 page, due, value;
    /* A machine too slow for the rate writes less, but goes on to count. */
    if (elapsed > HZ / 10)
        elapsed = HZ / 10;
    for (due += dirty_rate * elapsed; due >= HZ; due -= HZ) {
        *(volatile u32 *)((FREE_FROM_MIB << 20) + page * PAGE) = ++value | 1;
        if (++page >= dirty_pages)
            page = 0;
    }
}

/* ---- The life of the guest ------------------------------------------------------------------ */

__attribute__((used)) void run(const struct multiboot *info)
{
    const char *line = info->flags & MULTIBOOT_HAS_COMMAND_LINE ? info->command_line : "";
    u32 memory_mib = info->flags & MULTIBOOT_HAS_MEMORY ? (info->upper_kib + 2047) / 1024 : 0;
    u32 panic_at = option(line, "panic");
    u32 hang_at = option(line, "hang");
    u32 reboot_at = option(line, "reboot");
    u32 off_at = option(line, "off");
    u32 disk_from = option(line, "ioerr");
    u32 watchdog_seconds = option(line, "wdt");
    u32 seen = 0, second = 0;

    serial_init();
    print("micro guest up, ");
    print_number(memory_mib);
    print(" MiB, command line: ");
    print(line);
    print("\n");

    dirty_init(memory_mib, option(line, "dirty"), option(line, "ws"));
    power_button_init();
    unplug_init();
    if (watchdog_seconds != ABSENT)
        watchdog_arm(watchdog_seconds);
    interrupts_init();

    for (;;) {
        u32 now = ticks;
        if (now == seen) {
            /* A tick between the comparison and this is no loss: the next one is 10 ms away. */
            __asm__ volatile("hlt");
            continue;
        }
        if (dirty_rate)
            dirty(now - seen);
        if (now / (HZ / 10) != seen / (HZ / 10)) {
            poll_power_button();
            poll_unplug();
        }
        seen = now;
        if (now / HZ == second)
            continue;
        /* Never more than one at a time, so that no number is missing after a delay. */
        second++;
        say("tick ", second, "");
        if (watchdog && hang_at != ABSENT)
            watchdog_pet();
        if (second >= hang_at) {
            print("hang\n");
            stop_for_ever();
        }
        if (second >= panic_at)
            panic();
        if (second >= reboot_at)
            reset();
        if (second >= off_at)
            power_off();
        if (second >= disk_from)
            disk_write();
    }
}
