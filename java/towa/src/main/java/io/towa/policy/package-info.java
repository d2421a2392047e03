/**
 * What an object is made of: which classes can be durable, what of each field is kept, which objects are found again by name. Promotion, recovery and
 * {@code explain} all ask here, so that no two of them can differ.
 */
package io.towa.policy;
