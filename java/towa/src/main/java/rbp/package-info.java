/** The interface of the thesis "RBP" (2023), Figure 3.2, on top of {@link io.towa.Towa}: its programs compile and run as printed. */
package rbp;
